"""Search the cheapest fleet that keeps a promise: sizes by arithmetic, each in its likely shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from scheduling.placement import Placement
from scheduling.scaling.search import fewest
from sim.commands.arms import Arm
from sim.result import End, SimResult
from sim.spec import FleetShape

LOWEST_SHARE = 0.7
"""Shapes that carry less than this share of the rate by arithmetic are not tried."""
MAX_SHAPES = 4
MARGIN_STEPS = 5
MOST_MARGIN = 4.0


@dataclass(frozen=True, slots=True)
class Tried:
    """The outcome of a candidate; shares of all requests after the first tenth."""

    candidate: Arm
    good: float
    refused: float
    late: float
    """Requests whose first token was late."""
    slow: float
    """Requests whose first token was in time, but not the tokens after it."""
    unfinished: float

    @property
    def why(self) -> str:
        """The reasons why it was not better."""
        parts = (
            (self.refused, "refused"),
            (self.late, "with a late first token"),
            (self.slow, "with slow tokens after it"),
            (self.unfinished, "not done"),
        )
        return ", ".join(f"{share:.1%} {text}" for share, text in parts if share > 0) or "nothing"


@dataclass(frozen=True, slots=True)
class Found:
    """The answer. `cheaper` is the best fleet with one worker less; None if there is no such fleet."""

    best: Tried
    most_rate: float
    """The highest rate tried that it carries."""
    cheaper: Tried | None


Try = Callable[[Arm, float], Tried]
Estimate = Callable[[FleetShape, Placement], float]


def judge(candidate: Arm, result: SimResult) -> Tried:
    """Summarise a simulation as shares."""
    kept = result.judged
    count = len(kept)
    done = [request for request in kept if request.end is End.FINISHED]
    late = sum(not request.met_ttft for request in done)
    good = sum(request.good for request in done)
    refused = sum(request.end is End.REFUSED for request in kept)
    return Tried(
        candidate,
        good / count,
        refused / count,
        late / count,
        (len(done) - late - good) / count,
        (count - len(done) - refused) / count,
    )


def _shapes(size: int) -> Iterator[tuple[FleetShape, Placement]]:
    yield FleetShape(0, size), Placement.AGGREGATED
    for prefill in range(1, size):
        for placement in (Placement.DISAGGREGATED, Placement.CONDITIONAL):
            yield FleetShape(prefill, size - prefill), placement


@dataclass(frozen=True, slots=True)
class Search:
    """Looks for the fewest workers under a policy that keep a share `goodput` of all requests good."""

    policy: str
    goodput: float
    most_workers: int
    budgets: Sequence[int | None]
    estimate: Estimate
    attempt: Try

    def cheapest(self, rate: float) -> Found | None:
        """Return the fleet with the fewest workers that is enough; None if `most_workers` are too few."""
        tried: dict[int, Tried] = {}

        def holds(size: int) -> bool:
            tried[size] = self._best(size, rate)
            return tried[size].good >= self.goodput

        size = fewest(self._first_size(rate), self.most_workers, holds)
        if size is None:
            return None
        best = tried[size]
        return Found(best, self._most_rate(best.candidate, rate), tried.get(size - 1))

    def _first_size(self, rate: float) -> int:
        for size in range(1, self.most_workers):
            if max(self.estimate(fleet, placement) for fleet, placement in _shapes(size)) >= rate:
                return size
        return self.most_workers

    def _best(self, size: int, rate: float) -> Tried:
        """Return the first shape of this size that is enough, or the best of those worth trying."""
        shapes = sorted(_shapes(size), key=lambda shape: -self.estimate(*shape))[:MAX_SHAPES]
        worth = [shape for shape in shapes if self.estimate(*shape) >= LOWEST_SHARE * rate] or shapes[:1]
        tried: list[Tried] = []
        for budget in self.budgets:
            for fleet, placement in worth:
                found = self.attempt(Arm(self.policy, placement, fleet, budget), rate)
                if found.good >= self.goodput:
                    return found
                tried.append(found)
        return max(tried, key=lambda candidate: candidate.good)

    def _most_rate(self, candidate: Arm, rate: float) -> float:
        """Return the highest rate that it carries, by bisection on its logarithm."""
        low, high = rate, rate
        while self.attempt(candidate, high * 1.25).good >= self.goodput:
            low = high = high * 1.25
            if low >= MOST_MARGIN * rate:
                return low
        high *= 1.25
        for _ in range(MARGIN_STEPS):
            middle = math.sqrt(low * high)
            low, high = (
                (middle, high) if self.attempt(candidate, middle).good >= self.goodput else (low, middle)
            )
        return low
