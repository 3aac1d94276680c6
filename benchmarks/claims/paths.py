"""Conditional disaggregation against both of what it chooses between, on as many workers."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial

from benchmarks.claims.runs.cells import WORKLOADS, Cell, estimate, grid
from benchmarks.claims.runs.play import Arm, Case, goodput, play, profile
from benchmarks.claims.runs.settings import Settings
from benchmarks.claims.runs.tasks import Workers
from reporting.section import Goal, Section, markdown, ratios
from reporting.tables import cell as in_words
from scheduling.placement import Placement

NUM_WORKERS = 4
AGGREGATED = Arm("slack", None, Placement.AGGREGATED, "4d")
SPLITS = ("1p3d", "2p2d")
SHARES = (0.6, 0.8, 1.0)
"""Of what arithmetic says the workers carry under the cell's TPOT."""

Goodputs = Mapping[tuple[Cell, float, Arm], Sequence[float]]


def arms(split: str) -> tuple[Arm, Arm]:
    """Both on the same split."""
    return (
        Arm("slack", None, Placement.DISAGGREGATED, split),
        Arm("slack", None, Placement.CONDITIONAL, split),
    )


ARMS = (AGGREGATED, *(arm for split in SPLITS for arm in arms(split)))


def measure(workers: Workers, settings: Settings) -> Section:
    """Every arm in every cell at the same rates."""
    cells = [one for workload in WORKLOADS for one in grid(profile(), workload)]
    if settings.is_quick:
        cells = [one for one in cells if one.ttft_ratio == 10.0]
    rates = {one: estimate(profile(), one.workload, one.promises.tpot_ms, NUM_WORKERS) for one in cells}
    keys = [(one, share, arm) for one in cells for share in SHARES for arm in ARMS]
    span_s = settings.span_s / 2  # four workers see as many requests in half the time
    tasks = [
        partial(_goodput, Case(arm, one.workload, share * rates[one], seed, span_s, one.promises))
        for one, share, arm in keys
        for seed in settings.seeds
    ]
    found = iter(workers.map("paths", tasks))
    goodputs = {key: [next(found) for _ in settings.seeds] for key in keys}
    return section(cells, goodputs, settings)


def _goodput(case: Case) -> float:
    return goodput(play(case), case.promises)


def section(cells: Sequence[Cell], goodputs: Goodputs, settings: Settings) -> Section:
    """Goals and a table for each split."""
    goals, tables = [], []
    for split in SPLITS:
        found = {one: worst(goodputs, one, split) for one in cells}
        least = min(found, key=lambda one: statistics.median(found[one][1]))
        share, figures = found[least]
        claim = (
            f"conditional {split} / better of 4d and {split}: least of all cells ({least.name}, {share:g} ×)"
        )
        goals.append(Goal(claim, figures, 0.95))
        header = (
            f"{split}",
            "load",
            "aggregated 4d, good/s",
            "disaggregated",
            "conditional",
            "by the better",
        )
        tables.append(markdown(header, [_row(goodputs, one, found[one][0], split) for one in cells]))
    method = (
        f"{NUM_WORKERS} workers, policy slack, {settings.words} (half of that time): "
        f"aggregated on 4d, the others on the same split. Loads {SHARES} of what 4d carry by arithmetic; of "
        "each cell the worst load is shown. The better of the two is taken by its median."
    )
    return Section("paths: conditional disaggregation", method, tuple(goals), tuple(tables))


def better(goodputs: Goodputs, one: Cell, share: float, split: str) -> Arm:
    """Of aggregated and disaggregated, by the median."""
    return max((AGGREGATED, arms(split)[0]), key=lambda arm: statistics.median(goodputs[one, share, arm]))


def worst(goodputs: Goodputs, one: Cell, split: str) -> tuple[float, tuple[float, ...]]:
    """The load at which conditional does worst, and its ratios there."""
    found = {
        share: ratios(
            goodputs[one, share, arms(split)[1]], goodputs[one, share, better(goodputs, one, share, split)]
        )
        for share in SHARES
    }
    share = min(found, key=lambda share: statistics.median(found[share]))
    return share, found[share]


def _row(goodputs: Goodputs, one: Cell, share: float, split: str) -> tuple[str, ...]:
    names = (AGGREGATED, *arms(split))
    cells = [in_words(goodputs[one, share, arm]) for arm in names]
    return one.name, f"{share:g} ×", *cells, in_words(worst(goodputs, one, split)[1])
