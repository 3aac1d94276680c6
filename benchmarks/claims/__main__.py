"""`python -m benchmarks.claims [NAME ...]`: Markdown on standard output, ready for benchmarks/RESULTS.md.

Exit codes: 0 every goal is met, 1 one is missed, 2 a wrong setting.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.claims import classes, grid, overload, paths, refusals, speed, strict_itl
from benchmarks.claims.settings import Settings
from benchmarks.claims.table import Section
from benchmarks.claims.tasks import Workers
from benchmarks.report import machine

SECTIONS: dict[str, Callable[[Workers, Settings], Section]] = {
    "grid": grid.measure,
    "strict_itl": strict_itl.measure,
    "overload": overload.measure,
    "refusals": refusals.measure,
    "paths": paths.measure,
    "classes": classes.measure,
    "speed": speed.measure,
}
QUICK_SEEDS = (1, 2)
QUICK_SPAN_S = 60.0


def main(argv: Sequence[str]) -> int:
    args = _parser().parse_args(argv)
    try:
        settings = _settings(args)
    except ValueError as error:
        print(f"claims: {error}", file=sys.stderr)
        return 2
    sections = []
    with Workers() as workers:
        for name in args.names or SECTIONS:
            began = time.perf_counter()
            section = SECTIONS[name](workers, settings)
            sections.append(section)
            print(f"{section.markdown()}\n\nMeasured in {time.perf_counter() - began:.0f} s.\n", flush=True)
    facts = machine()
    print("; ".join(f"{name} {value}" for name, value in facts.items()))
    if args.json is not None:
        document = {"facts": facts, "sections": [section.as_dict() for section in sections]}
        args.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if all(goal.is_met for section in sections for goal in section.goals) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims", description="Claims, measured.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SECTIONS))
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", help="1 2 3 4 5")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every figure")
    parser.add_argument("--quick", action="store_true", help="fewer cells, shorter runs, two seeds")
    return parser


def _settings(args: argparse.Namespace) -> Settings:
    if args.quick:
        return Settings(tuple(args.seeds or QUICK_SEEDS), QUICK_SPAN_S, is_quick=True)
    return Settings(tuple(args.seeds)) if args.seeds else Settings()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
