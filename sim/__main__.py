"""`python -m sim simulate` and `python -m sim plan`; `baton` starts them from a checkout."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sim.commands import plan, simulate
from sim.commands.arguments import USAGE, Parser

INTERRUPTED = 130


def main(typed: Sequence[str] | None = None) -> int:
    """Run a command; exit code 2 means that its arguments are wrong."""
    args = flags().parse_args(typed)
    try:
        code = simulate.simulate(args) if args.command == "simulate" else plan.plan(args)
    except ValueError as error:
        sys.stderr.write(f"baton {args.command}: {error}\n")
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def flags() -> Parser:
    """Return the parser of both commands."""
    root = Parser(prog="baton", description="A fleet on a simulated clock.")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    simulate.add_flags(
        commands.add_parser("simulate", help="play a workload against a fleet", description=simulate.__doc__)
    )
    plan.add_flags(
        commands.add_parser("plan", help="find the cheapest fleet that holds", description=plan.__doc__)
    )
    return root


if __name__ == "__main__":
    sys.exit(main())
