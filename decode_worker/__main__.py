"""`python -m decode_worker`: fetches KV, runs decode steps, and prefill chunks inside them when told to."""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # Loading the modules below takes a while, in which Ctrl-C shall end this process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from worker.process.command import run
from worker.role import WorkerRole

if __name__ == "__main__":
    run(WorkerRole.DECODE)
