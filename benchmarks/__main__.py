"""Everything that measures a fleet, one command each.

Exit codes: 0 measured, 1 a request failed or a bound does not hold, 2 a wrong setting or file.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from baton.fleet import FleetError

COMMANDS = {
    "bench": "a workload at a rate, under several policies side by side",
    "batching": "continuous against static batching, as three separate ratios",
    "memory": "how much of the KV pool is at work under load, and what preemption costs",
    "plot": "a page from the JSON of measurements and simulations",
    "fidelity": "the simulator against a live fleet, request by request",
}
EXIT_WRONG = 2


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in argv[:1] if argv[:1] and argv[0] in COMMANDS else COMMANDS:
        _add(commands, name)
    args = parser.parse_args(argv)
    args.argv = list(argv[1:])
    try:
        code: int = importlib.import_module(f"benchmarks.{args.command}").run(args)
    except (ValueError, OSError, FleetError) as error:
        print(f"{args.command}: {error}", file=sys.stderr)
        return EXIT_WRONG
    except KeyboardInterrupt:
        return 130
    return code


def _add(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    summary, _, details = (module.__doc__ or "").partition("\n\n")
    command = commands.add_parser(
        name,
        help=COMMANDS[name],
        description=summary,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
