"""Check the claims about scheduling, in simulation, one by one.

python -m benchmarks claims overload classes --seeds 1,2,3,4,5 --json claims.json
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from benchmarks.claims import classes, grid, overload, paths, refusals, slow_spell, speed, strict_itl
from benchmarks.claims.lab import Lab, Settings
from benchmarks.flags import FIVE_SEEDS
from benchmarks.report import report
from sim.reporting.section import Section

SECTIONS: dict[str, Callable[[Lab], Section]] = {
    "grid": grid.measure,
    "strict_itl": strict_itl.measure,
    "overload": overload.measure,
    "refusals": refusals.measure,
    "paths": paths.measure,
    "classes": classes.measure,
    "slow_spell": slow_spell.measure,
    "speed": speed.measure,
}
QUICK_SEEDS = (1, 2)
QUICK_SPAN_S = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"claims to check; without names all: {', '.join(SECTIONS)}"
    )
    parser.add_argument("--quick", action="store_true", help="fewer cells, shorter runs, two seeds")


def run(args: argparse.Namespace) -> int:
    """Check the named claims; raise ValueError for an unknown name."""
    unknown = [name for name in args.names if name not in SECTIONS]
    if unknown:
        raise ValueError(f"claim is {unknown[0]!r}; accepted: {', '.join(SECTIONS)}")
    return report(args, _sections(args.names or list(SECTIONS), _settings(args.seeds, args.quick)))


def _sections(names: Sequence[str], settings: Settings) -> Iterator[Section]:
    with Lab(settings) as lab:
        for name in names:
            start_s = time.perf_counter()
            section = SECTIONS[name](lab)
            duration = f"Measured in {time.perf_counter() - start_s:.0f} s."
            yield replace(section, method=f"{section.method} {duration}")


def _settings(seeds: Sequence[int], is_quick: bool) -> Settings:
    if not is_quick:
        return Settings(tuple(seeds))
    own_seeds = QUICK_SEEDS if tuple(seeds) == FIVE_SEEDS else tuple(seeds)
    return Settings(own_seeds, QUICK_SPAN_S, is_quick=True)
