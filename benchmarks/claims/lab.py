"""Run the simulations of claims with every seed, on all cores; and search for the highest rate that holds."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from typing import Self, TypeVar

from benchmarks.claims.play import Case
from sim.reporting.progress import progress_bars

K = TypeVar("K")
T = TypeVar("T")
FIRST_STEP = 2.0
MOST_DOUBLINGS = 12


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of all claims; all arms get the same seeds, so figures can be compared seed by seed."""

    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    span_s: float = 120.0
    """Seconds of simulated arrivals; the first tenth of the requests is dropped."""
    precision: float = 0.03
    """Relative precision of rates that are searched for."""
    is_quick: bool = False
    """Fewer cells and rates: to check for changes, not to publish."""

    @property
    def words(self) -> str:
        """The load and seeds in words, for tables."""
        return f"{self.span_s:g} s of Poisson arrivals, seeds {', '.join(map(str, self.seeds))}"

    def __post_init__(self) -> None:
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds are {self.seeds}; accepted: whole numbers from 0, each once")


class Lab:
    """A pool of processes, one for each core; they end with the `with` block."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        count = len(os.sched_getaffinity(0))
        self._pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def judge(
        self, label: str, cases: Mapping[K, Case], judge: Callable[[Case], T], *, span_share: float = 1.0
    ) -> dict[K, list[T]]:
        """Return each case's verdicts, one per seed. Cases get their seeds and spans here."""
        seeds, span_s = self.settings.seeds, span_share * self.settings.span_s
        tasks = [
            partial(judge, replace(case, seed=seed, span_s=span_s))
            for case in cases.values()
            for seed in seeds
        ]
        verdicts = iter(self.map(label, tasks))
        return {key: [next(verdicts) for _ in seeds] for key in cases}

    def capacities(
        self, label: str, cases: Mapping[K, Case], holds: Callable[[Case], bool]
    ) -> dict[K, list[float]]:
        """Return each case's highest rates that hold, one per seed; its own rate is the first guess."""
        return self.judge(label, cases, partial(_capacity, holds, self.settings.precision))

    def map(self, label: str, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Return the results in order, with progress on standard error. Raise the first failure."""
        futures: list[Future[T]] = [self._pool.submit(task) for task in tasks]
        with progress_bars() as progress:
            for future in progress.track(as_completed(futures), total=len(tasks), description=label):
                future.result()
        return [future.result() for future in futures]


def _capacity(holds: Callable[[Case], bool], precision: float, case: Case) -> float:
    return highest(lambda rate: holds(replace(case, rate_per_s=rate)), case.rate_per_s, precision=precision)


def highest(holds: Callable[[float], bool], guess: float, *, precision: float = 0.04) -> float:
    """Return the highest rate that holds, within `precision` of itself; 0 if none does.

    The search begins at `guess`, and doubles or halves until one rate holds and one does not; then it bisects
    by ratio. Raise ValueError if guess or precision is not above 0.
    """
    if not (guess > 0 and precision > 0):
        raise ValueError(f"guess is {guess}, precision {precision}; accepted: numbers above 0")
    low, high = _bracket(holds, guess)
    if low == 0:
        return 0.0
    while high / low > 1 + precision:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _bracket(holds: Callable[[float], bool], guess: float) -> tuple[float, float]:
    low = high = guess
    if holds(guess):
        for _ in range(MOST_DOUBLINGS):
            low, high = high, high * FIRST_STEP
            if not holds(high):
                return low, high
        raise ValueError(f"even {high:g} holds; accepted: a guess closer to what is searched")
    for _ in range(MOST_DOUBLINGS):
        low, high = low / FIRST_STEP, low
        if holds(low):
            return low, high
    return 0.0, low
