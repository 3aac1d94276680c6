"""Draw the good requests of each policy by load, for the largest fleets."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping

from matplotlib.figure import Figure

from benchmarks.rivals.cases import Case, Outcome
from sim.reporting.plots import for_light_and_dark, legend, looks, svg

POLICIES = ("slack", "slos_serve", "jitserve", "qoserve", "polyserve", "chunked")
WIDTH, HEIGHT = 10.0, 5.6
COLUMNS = 3


def draw(outcomes: Mapping[Case, Outcome]) -> str:
    """Return the plot as SVG: a panel for each situation, with each policy's better placement."""
    panels = _panels(outcomes)

    def paint(page: Figure) -> None:
        look_of = looks(POLICIES)
        rows = -(-len(panels) // COLUMNS)
        axes = page.subplots(rows, min(COLUMNS, len(panels)), squeeze=False)
        flat = [part for row in axes for part in row]
        for part, (title, by_policy) in zip(flat, panels.items(), strict=False):
            for policy, points in by_policy.items():
                look, loads = look_of[policy], sorted(points)
                part.plot(
                    loads, [points[load] for load in loads],
                    color=look.colour, linestyle=look.dash, marker=look.marker, label=policy, markersize=4,
                )  # fmt: skip
            part.set_title(title, fontsize=10)
            part.set_ylim(bottom=0)
        for part in flat[len(panels) :]:
            part.set_visible(False)
        for row in axes:
            row[0].set_ylabel("good requests, of capacity")
        for part in axes[-1]:
            part.set_xlabel("load, of capacity")
        legend(page, flat[0])

    return for_light_and_dark(svg(paint, WIDTH, HEIGHT, "rivals"))


def _panels(outcomes: Mapping[Case, Outcome]) -> dict[str, dict[str, dict[float, float]]]:
    """Return good requests as a share of the capacity, by panel, policy and load."""
    largest: dict[str, int] = defaultdict(int)
    for case in outcomes:
        largest[case.situation] = max(largest[case.situation], case.num_workers)
    shares: dict[tuple[str, str, float], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for case, outcome in outcomes.items():
        if case.num_workers == largest[case.situation] and case.policy in POLICIES:
            capacity = outcome.rate_per_s / case.load
            shares[case.situation, case.policy, case.load][case.placement].append(
                outcome.good_per_s / capacity
            )
    panels: dict[str, dict[str, dict[float, float]]] = defaultdict(lambda: defaultdict(dict))
    for (situation, policy, load), by_placement in shares.items():
        title = f"{situation}, {largest[situation]} workers"
        panels[title][policy][load] = max(map(statistics.median, by_placement.values()))
    return panels
