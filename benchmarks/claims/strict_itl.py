"""Measure the capacity under a strict limit on every gap, as Sarathi-Serve defines it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from benchmarks.claims.cells import estimate
from benchmarks.claims.lab import Lab, Settings
from benchmarks.claims.play import Case, Played, SimArm, play, profile
from sim.commands.capacity import references
from sim.reporting.section import Goal, Section, ratios, table
from sim.reporting.tables import cell as in_words
from sim.workload import Promises, sample

STRICT_RATIO = 5.0
"""The limit on a gap, in D."""
MOST_QUEUED_S = 2.0
LEAST_SERVED = 0.99
"""The least share of requests served, since refusing must not count as capacity. A policy without promises
refuses none."""
WORKLOADS = ("chat", "summarise")
"""The workloads of the paper: conversations, and articles to summarise."""
BASELINE, SLACK = SimArm("prefill_first"), SimArm("slack")
ARMS = (
    BASELINE,
    SLACK,
    SimArm("chunked", 512),
    SimArm("chunked", 1024),
    SimArm("chunked", 1536),
)


Key = tuple[str, SimArm]


def is_carried(played: Played, itl_ms: int) -> bool:
    """Return True if P99 of all gaps is within the limit, the median queueing within 2 s, and almost none
    refused.
    """
    if played.refused.mean() > 1 - LEAST_SERVED:
        return False
    queued = np.where(np.isnan(played.queue), np.inf, played.queue)
    return played.itl_p99_s * 1000 <= itl_ms and float(np.median(queued)) <= MOST_QUEUED_S


def holds(case: Case) -> bool:
    """Return True if a case is carried under its own limit on gaps."""
    assert case.promises.itl_ms is not None
    return is_carried(play(case), case.promises.itl_ms)


def measure(lab: Lab) -> Section:
    """Find the highest rate that each arm carries, by bisection, seed by seed."""
    cases = {}
    for workload in WORKLOADS:
        itl_ms = round(STRICT_RATIO * references(profile(), sample(workload, 1.0), 1.0).decode_step_s * 1000)
        guess = 0.5 * estimate(workload, itl_ms)
        for arm in ARMS:
            cases[workload, arm] = Case(arm, workload, guess, Promises(itl_ms=itl_ms))
    return section(lab.capacities("strict_itl", cases, holds), itl_ms, lab.settings)


def section(capacities: Mapping[Key, Sequence[float]], itl_ms: int, settings: Settings) -> Section:
    """Return goals and a table."""

    def ratio(key: Key) -> tuple[float, ...]:
        return ratios(capacities[key], capacities[key[0], BASELINE])

    goals = tuple(
        Goal(f"{workload}: capacity of slack / prefill_first", ratio((workload, SLACK)), 2.6)
        for workload in WORKLOADS
    )
    method = (
        f"One worker, {settings.words}. Carried: P99 of all gaps ≤ "
        f"{itl_ms} ms ({STRICT_RATIO:g} D), median queueing ≤ {MOST_QUEUED_S:g} s, and at least "
        f"{LEAST_SERVED:.0%} served; bisected to {settings.precision:.0%}. Requests state that gap alone."
    )
    columns: dict[str, Callable[[Key], str]] = {
        "workload": lambda key: key[0],
        "arm": lambda key: key[1].name,
        "capacity, 1/s": lambda key: in_words(capacities[key]),
        "by prefill_first": lambda key: in_words(ratio(key)),
    }
    return Section(
        "strict_itl: capacity under a limit on every gap", method, goals, (table(capacities, columns),)
    )
