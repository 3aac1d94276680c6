"""All policies beside one another: every arm in every situation, at every load and size of fleet.

python -m benchmarks rivals --rows rivals.jsonl --traces azure_2023_code.csv.gz

Every run is written to the file of --rows when it ends. The same command goes on from there, and only prints
the tables if the file has all runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.flags import names, numbers
from benchmarks.report import report
from benchmarks.rivals.cases import LOADS, Case, cases, play
from benchmarks.rivals.runs import Runs
from benchmarks.rivals.situations import Situation, situations
from benchmarks.rivals.tables import sections, write_means
from sim.commands.values import plotted
from sim.play.all_cores import on_all_cores
from sim.reporting.machine import machine
from sim.reporting.progress import progress_bars


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--rows", type=Path, default=Path("rivals.jsonl"), metavar="FILE",
        help="all runs, a line each, to go on from (rivals.jsonl)",
    )  # fmt: skip
    add("--traces", type=Path, nargs="+", default=[], metavar="FILE", help="recorded traffic to play as well")
    add("--situations", type=names, metavar="NAME,NAME", help="what is offered (everything)")
    add("--policies", default="all", metavar="NAME,NAME", help="policies to play (all)")
    add(
        "--loads", type=numbers, default=list(LOADS), metavar="X,X",
        help=f"shares of what a fleet carries by arithmetic ({','.join(f'{load:g}' for load in LOADS)})",
    )  # fmt: skip
    add("--means", type=Path, metavar="FILE.csv", help="write every cell, as means over the seeds")
    add("--plot", type=plotted, metavar="FILE.svg", help="draw good requests by load")


def run(args: argparse.Namespace) -> int:
    """Play what is not in the file yet, and print the tables; raise ValueError for an unknown name."""
    every = list(cases(_situations(args), args.policies, args.loads, args.seeds))
    runs = Runs(args.rows)
    _play(runs, [case for case in every if case not in runs.outcomes], tuple(args.traces))
    outcomes = {case: runs.outcomes[case] for case in every}
    if args.means is not None:
        write_means(outcomes, args.means)
    if args.plot is not None:
        from benchmarks.rivals.plot import draw  # noqa: PLC0415  (matplotlib takes a second to load)

        args.plot.write_text(draw(outcomes), encoding="utf-8")
    return report(args, sections(outcomes))


def _situations(args: argparse.Namespace) -> Sequence[Situation]:
    by_name = situations(tuple(args.traces))
    unknown = [name for name in args.situations or () if name not in by_name]
    if unknown:
        raise ValueError(f"situation is {unknown[0]!r}; accepted: {', '.join(by_name)}")
    return [by_name[name] for name in args.situations or by_name]


def _play(runs: Runs, missing: Sequence[Case], traces: tuple[Path, ...]) -> None:
    """Play cases on all cores, and keep each when it ends."""
    if not missing:
        return
    commit = machine()["commit"]
    tasks = ((case, partial(play, case, traces, commit)) for case in missing)
    with progress_bars() as bars:
        for case, outcome in bars.track(on_all_cores(tasks), total=len(missing), description="runs"):
            runs.add(case, outcome)
