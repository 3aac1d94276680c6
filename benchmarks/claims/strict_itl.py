"""Measure the capacity under a strict limit on every gap, as Sarathi-Serve defines it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.claims.runs.cells import estimate
from benchmarks.claims.runs.play import Arm, Case, Played, play, profile
from benchmarks.claims.runs.search import highest
from benchmarks.claims.runs.settings import Settings
from benchmarks.claims.runs.tasks import Workers
from reporting.section import Goal, Section, markdown, ratios
from reporting.tables import cell as in_words
from sim.commands.capacity import references
from sim.workload import Promises, sample

STRICT_RATIO = 5.0
"""The limit on a gap, in D."""
MOST_QUEUED_S = 2.0
LEAST_SERVED = 0.99
"""The least share of requests served, since refusing must not count as capacity. A policy without promises
refuses none."""
WORKLOADS = ("chat", "summarise")
"""The workloads of the paper: conversations, and articles to summarise."""
BASELINE = Arm("prefill_first")
ARMS = (BASELINE, Arm("slack"), Arm("chunked", 512), Arm("chunked", 1024), Arm("chunked", 1536))


@dataclass(frozen=True, slots=True)
class Search:
    """The search for the capacity of one arm with one seed."""

    arm: Arm
    workload: str
    seed: int
    span_s: float
    precision: float
    itl_ms: int
    guess: float

    def holds(self, rate: float) -> bool:
        asked = Promises(itl_ms=self.itl_ms)
        return is_carried(
            play(Case(self.arm, self.workload, rate, self.seed, self.span_s, asked)), self.itl_ms
        )

    def capacity(self) -> float:
        return highest(self.holds, self.guess, precision=self.precision)


def is_carried(played: Played, itl_ms: int) -> bool:
    """Return True if P99 of all gaps is within the limit, the median queueing within 2 s, and almost none
    refused.
    """
    if played.refused.mean() > 1 - LEAST_SERVED:
        return False
    queued = np.where(np.isnan(played.queue), np.inf, played.queue)
    return played.itl_p99_s * 1000 <= itl_ms and float(np.median(queued)) <= MOST_QUEUED_S


def measure(workers: Workers, settings: Settings) -> Section:
    """Find the highest rate that each arm carries, by bisection, seed by seed."""
    searches = []
    for workload in WORKLOADS:
        step_s = references(profile(), sample(workload, 1.0), 1.0).decode_step_s
        itl_ms = round(STRICT_RATIO * step_s * 1000)
        guess = 0.5 * estimate(profile(), workload, itl_ms)
        searches += [
            Search(arm, workload, seed, settings.span_s, settings.precision, itl_ms, guess)
            for arm in ARMS
            for seed in settings.seeds
        ]
    found = workers.map("strict_itl", [partial(search.capacity) for search in searches])
    return section(list(zip(searches, found, strict=True)), settings)


def section(found: Sequence[tuple[Search, float]], settings: Settings) -> Section:
    """Return goals and tables."""
    goals, rows = [], []
    for workload in WORKLOADS:
        by_arm = {
            arm: [rate for search, rate in found if (search.arm, search.workload) == (arm, workload)]
            for arm in ARMS
        }
        for arm, rates in by_arm.items():
            ratio = ratios(rates, by_arm[BASELINE])
            rows.append((workload, arm.name, in_words(rates), in_words(ratio)))
            if arm.policy == "slack":
                goals.append(Goal(f"{workload}: capacity of slack / prefill_first", ratio, 2.6))
    itl_ms = found[0][0].itl_ms
    method = (
        f"One worker, {settings.words}. Carried: P99 of all gaps ≤ "
        f"{itl_ms} ms ({STRICT_RATIO:g} D), median queueing ≤ {MOST_QUEUED_S:g} s, and at least "
        f"{LEAST_SERVED:.0%} served; bisected to {settings.precision:.0%}. Requests state that gap alone."
    )
    header = ("workload", "arm", "capacity, 1/s", "by prefill_first")
    return Section(
        "strict_itl: capacity under a limit on every gap", method, tuple(goals), (markdown(header, rows),)
    )
