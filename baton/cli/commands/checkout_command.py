"""Commands that run from a checkout, as the fleet's services do: `baton` only starts them and waits.

Everything typed after the command is theirs, `--help` included. They are children of this process in its own
process group, so Ctrl-C reaches them from the terminal; SIGTERM is passed on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from baton.cli.exits import FAILED, INTERRUPTED
from baton.fleet.checkout import find_checkout

PACKAGES = {"simulate": "sim", "plan": "sim", "bench": "benchmarks"}
SUMMARIES = {
    "simulate": "play a workload against a fleet on a simulated clock",
    "plan": "search the cheapest fleet that keeps a promise",
    "bench": "put load on a fleet and measure what its clients see",
}

_RUN = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
"""Runs a package of the checkout from the folder the user is in, so that paths mean what they say."""


def run(command: str, arguments: Sequence[str]) -> int:
    """Run the package and return its exit code. Report an error if the checkout lacks it."""
    package = PACKAGES[command]
    checkout = find_checkout()
    if not (checkout / package / "__main__.py").is_file():
        print(f"baton: {command} needs {package}/, which is not in the checkout {checkout}", file=sys.stderr)
        return FAILED
    with subprocess.Popen(_argv(checkout, package, command, arguments)) as child, _passing_on(child):
        return _exit_code(child)


def _argv(checkout: Path, package: str, command: str, arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-c", _RUN, str(checkout), package, command, *arguments]


def _exit_code(child: subprocess.Popen[bytes]) -> int:
    while True:
        try:
            code = child.wait()
        except KeyboardInterrupt:  # the child got the signal too, and decides how to end
            continue
        return INTERRUPTED if code == -signal.SIGINT else code if code >= 0 else 128 - code


@contextlib.contextmanager
def _passing_on(child: subprocess.Popen[bytes]) -> Iterator[None]:
    def pass_on(signum: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signum)

    former = signal.signal(signal.SIGTERM, pass_on)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)
