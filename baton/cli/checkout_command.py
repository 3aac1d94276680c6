"""Commands that run from a checkout, as the fleet's services do: this process becomes their program.

Everything typed after the command is theirs, `--help` included.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from baton.cli.exits import FAILED
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
    """Become the package. Return only if the checkout lacks it, which is reported."""
    package = PACKAGES[command]
    checkout = find_checkout()
    if (checkout / package / "__main__.py").is_file():
        program = [sys.executable, "-c", _RUN, str(checkout), package, command, *arguments]
        os.execv(sys.executable, program)  # noqa: S606 - no shell has to read the arguments
    print(f"baton: {command} needs {package}/, which is not in the checkout {checkout}", file=sys.stderr)
    return FAILED
