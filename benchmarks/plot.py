"""Draw a measurement from its JSON.

    python -m benchmarks plot bench.json --out bench.html
    python -m benchmarks plot bench.json --out goodput.svg

The second draws good against offered requests alone, as a picture for light and dark pages.
Accepts what `baton bench` and `baton simulate` wrote. Several files become one page with their arms side by
side, such as a fleet and its simulation, or one simulation for each rate.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sim.reporting import simulated
from sim.reporting.page import write_page
from sim.reporting.plots import for_light_and_dark, goodput_by_rate
from sim.reporting.results import Results, read


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", type=Path, nargs="+", metavar="FILE.json", help="results of measurements or simulations"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the page to write, or the picture: FILE.svg"
    )


def run(args: argparse.Namespace) -> int:
    results = merged([load(path) for path in args.files])
    if args.out.suffix == ".svg":
        args.out.write_text(for_light_and_dark(goodput_by_rate(briefly_named(results))), encoding="utf-8")
    else:
        write_page(results, args.out)
    return 0


def briefly_named(results: Results) -> Results:
    """Return the same runs, each arm named by its policy alone where that tells all of them apart."""
    names = {arm: arm.partition("/")[0] for arm in results.arms}
    if len(set(names.values())) < len(names):
        return results
    return replace(results, runs=tuple(replace(run, arm=names[run.arm]) for run in results.runs))


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
    run_keys: set[tuple[str, float, int]] = set()
    for results in measured:
        names = {(run.arm, run.rate_per_s, run.seed) for run in results.runs}
        for arm, rate, seed in sorted(run_keys & names):
            raise ValueError(f"{arm} at {rate:g}/s with seed {seed} is in two files; accepted: each run once")
        run_keys |= names
    facts = {
        f"{name} ({number})": fact
        for number, results in enumerate(measured, start=1)
        for name, fact in results.facts.items()
    }
    runs = tuple(run for results in measured for run in results.runs)
    return Results(" and ".join(dict.fromkeys(results.title for results in measured)), facts, runs)
