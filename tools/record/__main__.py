"""`python -m tools.record --out FILE.svg COMMAND...`: run commands in a terminal, and draw what it showed.

The output of one command stays on the screen when the next one is typed. Nothing is made up or left out, but
pauses are cut to `--pause-s`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.record.drawing import drawing
from tools.record.frames import frames
from tools.record.screen import Screen
from tools.record.session import Piece, run, typed

ROOT = Path(__file__).resolve().parents[2]
PROMPT = "\x1b[1;32m$\x1b[0m "
KEY_S = 0.08


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "commands", nargs="+", metavar="COMMAND", help="what is typed and run, one after another"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.svg")
    parser.add_argument("--title", default="baton", help="what stands above the terminal (baton)")
    parser.add_argument("--columns", type=int, default=88, metavar="N", help="width of the terminal (88)")
    parser.add_argument("--rows", type=int, default=28, metavar="N", help="its height (28)")
    parser.add_argument("--least-s", type=float, default=0.1, metavar="S", help="the shortest frame (0.1)")
    parser.add_argument("--pause-s", type=float, default=0.8, metavar="S", help="the longest pause (0.8)")
    parser.add_argument(
        "--rest-s", type=float, default=6.0, metavar="S", help="how long its end is shown (6)"
    )
    args = parser.parse_args()
    pieces = _session(args.commands, args.columns, args.rows, _environment(os.environ))
    pictures = frames(pieces, Screen(args.columns, args.rows), least_s=args.least_s, pause_s=args.pause_s)
    args.out.write_text(drawing(pictures, args.columns, args.rows, args.title, args.rest_s), encoding="utf-8")


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Leave out what a surrounding `make` tells its children, and colours beyond the palette."""
    ours = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKE_TERMOUT", "MAKE_TERMERR", "COLORTERM")
    return {name: value for name, value in variables.items() if name not in ours}


def _session(commands: list[str], columns: int, rows: int, environment: Mapping[str, str]) -> Iterator[Piece]:
    """Yield what all commands show, on one clock."""
    since_s = 0.0
    for command in commands:
        for part in (typed(PROMPT, command, KEY_S), run(command, columns, rows, ROOT, environment)):
            yield from (Piece(since_s + piece.at_s, piece.text) for piece in part)
            since_s += part[-1].at_s if part else 0.0


if __name__ == "__main__":
    main()
