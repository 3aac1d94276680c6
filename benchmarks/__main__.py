"""Everything that is measured, one command each.

Exit codes: 0 measured, 1 a request failed or a goal is missed, 2 a wrong setting or file.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from baton.fleet import FleetError
from benchmarks.registry import COMMANDS

EXIT_WRONG = 2


def main(argv: Sequence[str]) -> int:
    args = flags(argv[:1]).parse_args(argv)
    args.argv = list(argv[1:])
    try:
        code: int = importlib.import_module(COMMANDS[args.command].module).run(args)
    except (ValueError, OSError, FleetError) as error:
        print(f"{args.command}: {error}", file=sys.stderr)
        return EXIT_WRONG
    except KeyboardInterrupt:
        return 130
    return code


def flags(asked: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser; only the asked commands, whose modules it imports, have their flags."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        if name in asked:
            _add(commands, name)
        else:
            commands.add_parser(name, help=command.summary, add_help=False)
    return parser


def _add(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    module = importlib.import_module(COMMANDS[name].module)
    summary, _, details = (module.__doc__ or "").partition("\n\n")
    command = commands.add_parser(
        name,
        prog="baton bench" if name == "bench" else None,
        help=COMMANDS[name].summary,
        description=summary,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
