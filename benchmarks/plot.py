"""Draws a measurement again, from the JSON that it left.

    python -m benchmarks plot bench.json --out bench.html

Takes what `baton bench` and `baton simulate` wrote. Several files become one page, their arms side by side: a
simulation with the fleet it is of, or one simulation for each rate.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from reporting import simulated
from reporting.page import write_page
from reporting.results import Results, read


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", type=Path, nargs="+", metavar="FILE.json", help="results of measurements or simulations"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.html", help="the page to write")


def run(args: argparse.Namespace) -> int:
    write_page(merged([load(path) for path in args.files]), args.out)
    return 0


def load(path: Path) -> Results:
    """Raises `ValueError` naming the file."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    try:
        return simulated.read(document) if simulated.is_simulation(document) else read(document)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def merged(measured: Sequence[Results]) -> Results:
    """All runs on one page, facts per file. Raises `ValueError` for a run that two files tell of."""
    if len(measured) == 1:
        return measured[0]
    seen: set[tuple[str, float, int]] = set()
    for results in measured:
        names = {(run.arm, run.rate_per_s, run.seed) for run in results.runs}
        for arm, rate, seed in sorted(seen & names):
            raise ValueError(f"{arm} at {rate:g}/s with seed {seed} is in two files; accepted: each run once")
        seen |= names
    facts = {
        f"{name} ({number})": said
        for number, results in enumerate(measured, start=1)
        for name, said in results.facts.items()
    }
    runs = tuple(run for results in measured for run in results.runs)
    return Results(" and ".join(dict.fromkeys(one.title for one in measured)), facts, runs)
