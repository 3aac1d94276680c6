"""Draw the good requests of each policy by load, for the largest fleets."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping

from benchmarks.rivals.cases import Case, Outcome
from sim.reporting.plots import panels

POLICIES = ("slack", "slos_serve", "jitserve", "qoserve", "polyserve", "chunked")


def draw(outcomes: Mapping[Case, Outcome]) -> str:
    """Return the plot as SVG: a panel for each situation, with each policy's better placement."""
    return panels(_shares(outcomes), "offered (of capacity)", "good (of capacity)", "rivals")


def _shares(outcomes: Mapping[Case, Outcome]) -> dict[str, dict[str, dict[float, float]]]:
    """Return good requests as a share of the capacity, by panel, policy and load."""
    largest: dict[str, int] = defaultdict(int)
    for case in outcomes:
        largest[case.situation] = max(largest[case.situation], case.num_workers)
    shares: dict[tuple[str, str, float], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for case, outcome in outcomes.items():
        if case.num_workers == largest[case.situation] and case.policy in POLICIES:
            capacity = outcome.rate_per_s / case.load
            by_placement = shares[case.situation, case.policy, case.load]
            by_placement[case.placement].append(outcome.good_per_s / capacity)
    by_panel: dict[str, dict[str, dict[float, float]]] = defaultdict(lambda: defaultdict(dict))
    for (situation, policy, load), by_placement in shares.items():
        title = f"{situation}, {largest[situation]} workers"
        by_panel[title][policy][load] = max(map(statistics.median, by_placement.values()))
    return by_panel
