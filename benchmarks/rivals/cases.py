"""One run: an arm under a load, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.claims.play import profile
from benchmarks.rivals.situations import SPANS_S, Situation, situations
from scheduling.placement import Placement
from sim.commands.arms import arms
from sim.metrics import measure
from sim.play.simulation import run
from sim.result import RequestResult
from sim.spec import FleetShape, SimSpec

LOADS = (0.6, 1.0, 1.4, 2.0)
DRAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Case:
    """One run. A load is a share of what the fleet carries by arithmetic."""

    situation: str
    num_workers: int
    load: float
    policy: str
    placement: str
    fleet: str
    """Its workers by role, as in `2p2d`."""
    token_budget: int | None
    seed: int

    @property
    def arm(self) -> str:
        return f"{self.policy} {self.placement}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of a run. Rates count per second of arrivals; shares are of 1."""

    rate_per_s: float
    requests: int
    good_per_s: float
    good_share: float
    longest_good_share: float
    """Good ones among the tenth with the longest prompts."""
    refused_share: float
    kept_share: float | None
    """The share of promises that were kept; None if none was made."""
    worker_s_per_good: float | None
    """Seconds of workers for each good request, busy or not; None if none is good."""
    wall_s: float
    """How long the simulation took."""
    commit: str


def cases(
    offered: Sequence[Situation], policies: str, loads: Sequence[float], seeds: Sequence[int]
) -> Iterator[Case]:
    """Yield all runs, seed by seed, so that those of the first seed are a table by themselves."""
    for seed in seeds:
        for situation in offered:
            for size in situation.sizes:
                half = size // 2
                for load in loads:
                    for arm in arms(policies, None, FleetShape(half, size - half), None):
                        yield Case(
                            situation.name,
                            size,
                            load,
                            arm.policy,
                            arm.placement.value,
                            str(arm.fleet),
                            arm.token_budget,
                            seed,
                        )


def play(case: Case, traces: tuple[Path, ...], commit: str, arrived: Callable[[], None]) -> Outcome:
    """Simulate a case, and call `arrived` at each arrival."""
    situation = situations(traces)[case.situation]
    rate = situation.rate_per_s(case.num_workers, case.load)
    start_s = time.perf_counter()
    result = run(
        SimSpec(
            profile=profile(),
            fleet=FleetShape.parse(case.fleet),
            trace=situation.draw(rate, SPANS_S[case.num_workers], case.seed),
            policy=case.policy,
            placement=Placement(case.placement),
            token_budget=case.token_budget,
            seed=case.seed,
            drain_s=DRAIN_S,
        ),
        arrived,
    )
    metrics = measure(result)
    good = metrics.goodput_per_s
    return Outcome(
        rate_per_s=rate,
        requests=metrics.requests,
        good_per_s=good,
        good_share=metrics.good_share,
        longest_good_share=_longest_good_share(result.judged),
        refused_share=metrics.refused / metrics.requests,
        kept_share=metrics.kept_share,
        worker_s_per_good=case.num_workers / good if good else None,
        wall_s=time.perf_counter() - start_s,
        commit=commit,
    )


def _longest_good_share(requests: Sequence[RequestResult]) -> float:
    by_length = sorted(requests, key=lambda request: request.asked.prompt_tokens)
    longest = by_length[-max(1, len(by_length) // 10) :]
    return sum(request.good for request in longest) / len(longest)
