"""Flags, turns and the table of measurements of workers of several processes.

The contenders are one process with one thread, one with as many threads as there are processes, and the
processes, with a thread each.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from benchmarks.flags import count
from engine.model.model import DTYPES
from reporting.section import Goal, Section, markdown
from reporting.tables import cells

CONTEXT = 290
TOKENS = 256
"""The token budget of a step."""
POOL_TOKENS = 16_000
Contender = tuple[Callable[[], float], int]
"""Does the work and returns the seconds that it took; the threads that it needs in this process."""
Figures = tuple[float, float, float, float]
"""Median milliseconds of the three contenders; the first / the last."""


def add_process_flags(parser: argparse.ArgumentParser, name: str, meaning: str, rounds: int) -> None:
    """Add the flags of both measurements; `name` is what the processes are called."""
    add = parser.add_argument
    add("--dtype", choices=DTYPES, default="bfloat16", help="the type of the weights (bfloat16)")
    add(f"--{name}", type=count, default=2, metavar="N", help=f"{meaning} (2)")
    add("--rounds", type=count, default=rounds, metavar="N", help=f"rounds of each measurement ({rounds})")
    add("--model", type=Path, metavar="PATH", help="the checkpoint (a random one of 200 million weights)")


def compare(contenders: Sequence[Contender], rounds: int, rng: random.Random) -> Figures:
    """Time each contender once a round, in random order."""
    times: list[list[float]] = []
    for _ in range(1 + rounds):
        round_ms = [0.0] * len(contenders)
        for which in rng.sample(range(len(contenders)), len(contenders)):
            work, threads = contenders[which]
            torch.set_num_threads(threads)
            round_ms[which] = 1000 * work()
        times.append(round_ms)
    counted = times[1:]  # the first round may allocate
    one, threaded, several = (statistics.median(column) for column in zip(*counted, strict=True))
    return one, threaded, several, statistics.median(first / last for first, _, last in counted)


def section_of(
    title: str, method: str, found: Mapping[str, Sequence[Figures]], goals: Mapping[str, float], last: str
) -> Section:
    """Return the table of what was found, by load; `last` names the last contender, as "2 stages"."""
    num, _, _ = last.partition(" ")
    each_goal = (
        Goal(f"{name}, one thread / {last}", tuple(figures[3] for figures in found[name]), goal)
        for name, goal in goals.items()
    )
    rows = [(name, *cells(figures)) for name, figures in found.items()]
    head = ("load", "one thread, ms", f"{num} threads, ms", f"{last}, ms", "first / last")
    return Section(title, method, tuple(each_goal), (markdown(head, rows),), {"found": dict(found)})
