"""Draw a measurement from its JSON.

    python -m benchmarks plot bench.json --out bench.html

Accepts what `baton bench` and `baton simulate` wrote. Several files become one page with their arms side by
side, such as a fleet and its simulation, or one simulation for each rate.
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
    """Read results; raise `ValueError` naming the file."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    try:
        return simulated.read(document) if simulated.is_simulation(document) else read(document)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def merged(measured: Sequence[Results]) -> Results:
    """Join results, with facts per file; raise `ValueError` for a run that is in two files."""
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
    return Results(" and ".join(dict.fromkeys(results.title for results in measured)), facts, runs)
