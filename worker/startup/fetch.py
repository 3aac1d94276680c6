"""`python -m worker.startup.fetch ORG/NAME`: fetch a model of the hub that a worker could serve.

It is `runtime.hub`, but looks at the config before it fetches weights that no worker would take.
"""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # Loading the modules below takes a while, in which Ctrl-C shall end this process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import sys
from functools import partial
from pathlib import Path

from engine.errors import ModelRefused
from engine.model.allow_list import read_config
from runtime.hub.program import flags, run
from runtime.hub.refusals import HubRefused


def main() -> int:
    parser = flags("worker.startup.fetch")
    parser.add_argument("--prove-model", action="store_true", help="take architectures off the list too")
    args = parser.parse_args()
    return run(args, partial(_check, args))


def _check(args: argparse.Namespace, folder: Path) -> None:
    try:
        read_config(folder, unlisted=args.prove_model)
    except ModelRefused as error:
        found = f"{error.field} {error.found}"
        raise HubRefused(str(args.model), found, f"accepted: {error.accepted}") from error


if __name__ == "__main__":
    sys.exit(main())
