"""Play many seeds on all cores: `python -m tests.dst --seeds 1000 --from 0`, or replay one run.

A run that breaks a promise is made smaller and printed, with the command that replays it.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from tests.dst.coverage import Coverage, missing_probes, print_coverage, summary
from tests.dst.minimise import minimise
from tests.dst.page import write_page
from tests.dst.record import Recorder
from tests.dst.run import play, virtual
from tests.dst.scenario import Scenario, draw, from_json

CHUNK = 25
"""Seeds that a process plays before it reports."""
EACH_TWICE = 50
"""One seed of so many is played twice: both runs must be the same."""


@dataclass
class Tally:
    """The results of many runs."""

    coverage: Coverage = field(default_factory=Coverage)
    events: int = 0
    cpu_s: float = 0.0
    """Processor time of all processes together."""
    broken: list[tuple[int, str, str]] = field(default_factory=list)
    """Seed, promise and what was found."""

    def add(self, other: Tally) -> None:
        self.coverage += other.coverage
        self.events += other.events
        self.cpu_s += other.cpu_s
        self.broken += other.broken


def play_seeds(seeds: range) -> Tally:
    """Play these seeds in this process."""
    tally = Tally()
    began = time.process_time()
    with virtual():
        for seed in seeds:
            outcome = play(draw(seed))
            if seed % EACH_TWICE == 0 and play(draw(seed)).trace != outcome.trace:
                tally.broken.append((seed, "equal seeds give equal runs", "two runs of the seed differ"))
            tally.coverage += Coverage.of(outcome)
            tally.events += outcome.num_events
            if outcome.broken is not None:
                tally.broken.append((seed, outcome.broken.promise, outcome.broken.found))
    tally.cpu_s = time.process_time() - began
    return tally


def _chunks(first: int, count: int | None) -> Iterator[range]:
    last = sys.maxsize if count is None else first + count
    for begin in range(first, last, CHUNK):
        yield range(begin, min(begin + CHUNK, last))


def search(first: int, count: int | None, end_s: float, console: Console) -> Tally:
    """Play `count` seeds from `first` on, on all cores. No chunk begins after `end_s` of the monotonic clock.

    Without a count, only the clock ends it.
    """
    tally = Tally()
    workers = len(os.sched_getaffinity(0))
    chunks = _chunks(first, count)
    playing: set[Future[Tally]] = set()
    with ProcessPoolExecutor(workers) as pool, Progress(console=console, transient=True) as progress:
        bar = progress.add_task("seeds", total=count)
        while True:
            # Two for each process, so none waits for its next one and the list does not grow with the count.
            while len(playing) < 2 * workers and time.monotonic() < end_s and (chunk := next(chunks, None)):
                playing.add(pool.submit(play_seeds, chunk))
            if not playing:
                return tally
            ended, playing = wait(playing, return_when=FIRST_COMPLETED)
            for part in ended:
                tally.add(part.result())
            description = f"seeds, {len(tally.broken)} broken"
            progress.update(bar, completed=tally.coverage.runs, description=description)


def smallest(scenario: Scenario, promise: str) -> Scenario:
    """Return the smallest scenario found that breaks the same promise."""

    def fails(candidate: Scenario) -> bool:
        broken = play(candidate).broken
        return broken is not None and broken.promise == promise

    return minimise(scenario, fails)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.dst", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, metavar="N", help="how many to play (200)")
    parser.add_argument("--hours", type=float, metavar="H", help="play seeds for so long, instead of --seeds")
    parser.add_argument("--from", type=int, default=0, metavar="SEED", dest="first", help="the first (0)")
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="replay a scenario in a file")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write a page that shows the replayed run")
    parser.add_argument("--found", type=Path, metavar="FOLDER", help="write smallest failing scenarios here")
    parser.add_argument("--coverage", action="store_true", help="print which faults struck whom, and when")
    args = parser.parse_args()
    console = Console()
    if args.seed is not None or args.replay is not None:
        scenario = draw(args.seed) if args.seed is not None else from_json(args.replay.read_text())
        return _replay(scenario, args.page, console)
    began = time.monotonic()
    limited = args.hours is not None
    end_s = began + args.hours * 3600 if limited else math.inf
    tally = search(args.first, None if limited else args.seeds, end_s, console)
    took_s = time.monotonic() - began
    for seed, promise, found in tally.broken:
        console.print(f"[red]{promise}[/]: {found}", highlight=False)
        console.print(f"  python -m tests.dst --seed {seed}", highlight=False)
    if args.found is not None:
        _write_smallest(tally, args.found, console)
    if args.coverage:
        print_coverage(console, tally.coverage)
    elif missing := missing_probes(tally.coverage):
        console.print(f"never seen: {', '.join(missing)}", soft_wrap=True, highlight=False)
    console.print(
        f"seeds from {args.first}: {summary(tally.coverage)}; {tally.coverage.struck.total()} faults, "
        f"{tally.events} events, {len(tally.broken)} broken, in {took_s:.0f} s "
        f"({tally.cpu_s / 3600:.2f} hours of processor time)",
        soft_wrap=True,
        highlight=False,
    )
    return 1 if tally.broken else 0


def _replay(scenario: Scenario, page: Path | None, console: Console) -> int:
    recorder = Recorder()
    with virtual():
        outcome = play(scenario, recorder)
    if page is not None:
        write_page(page, scenario, recorder, outcome)
    broken = outcome.broken
    if broken is None:
        console.print(f"kept every promise in {outcome.simulated_s:.1f} s, {outcome.num_events} events")
        return 0
    console.print(f"[red]{broken.promise}[/]: {broken.found}", highlight=False)
    return 1


def _write_smallest(tally: Tally, folder: Path, console: Console) -> None:
    """Write the smallest scenario of each promise that broke."""
    folder.mkdir(parents=True, exist_ok=True)
    first = {promise: seed for seed, promise, _ in reversed(tally.broken)}
    with virtual():
        for promise, seed in first.items():
            path = folder / f"seed-{seed}.json"
            path.write_text(smallest(draw(seed), promise).to_json() + "\n")
            console.print(f"  python -m tests.dst --replay {path}", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
