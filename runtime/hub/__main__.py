"""`python -m runtime.hub ORG/NAME`: fetch a model of the hub, by the flags and exit codes of `program`."""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # Loading the modules below takes a while, in which Ctrl-C shall end this process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import sys

from runtime.hub.program import flags, run

if __name__ == "__main__":
    sys.exit(run(flags().parse_args()))
