"""Compare conditional disaggregation with both of its alternatives, on as many workers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
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
"""Loads as shares of what the workers carry by arithmetic under the cell's TPOT."""

Goodputs = Mapping[tuple[Cell, float, Arm], Sequence[float]]


def arms(split: str) -> tuple[Arm, Arm]:
    """Return the two arms that use this split."""
    return (
        Arm("slack", None, Placement.DISAGGREGATED, split),
        Arm("slack", None, Placement.CONDITIONAL, split),
    )


ARMS = (AGGREGATED, *(arm for split in SPLITS for arm in arms(split)))


def measure(workers: Workers, settings: Settings) -> Section:
    """Run every arm in every cell at the same rates."""
    cells = [cell for workload in WORKLOADS for cell in grid(profile(), workload)]
    if settings.is_quick:
        cells = [cell for cell in cells if cell.ttft_ratio == 10.0]
    rates = {cell: estimate(profile(), cell.workload, cell.promises.tpot_ms, NUM_WORKERS) for cell in cells}
    keys = [(cell, share, arm) for cell in cells for share in SHARES for arm in ARMS]
    span_s = settings.span_s / 2  # four workers see as many requests in half the time

    def task(key: tuple[Cell, float, Arm], seed: int) -> Callable[[], float]:
        cell, share, arm = key
        return partial(_goodput, Case(arm, cell.workload, share * rates[cell], seed, span_s, cell.promises))

    return section(cells, workers.per_seed("paths", keys, settings.seeds, task), settings)


def _goodput(case: Case) -> float:
    return goodput(play(case), case.promises)


def section(cells: Sequence[Cell], goodputs: Goodputs, settings: Settings) -> Section:
    """Return goals and a table for each split."""
    goals, tables = [], []
    for split in SPLITS:
        found = {cell: worst(goodputs, cell, split) for cell in cells}
        least = min(found, key=lambda key: statistics.median(found[key][1]))
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
        tables.append(markdown(header, [_row(goodputs, cell, found[cell][0], split) for cell in cells]))
    method = (
        f"{NUM_WORKERS} workers, policy slack, {settings.words} (half of that time): "
        f"aggregated on 4d, the others on the same split. Loads {SHARES} of what 4d carry by arithmetic; "
        "tables show the worst load of each cell. The better of the two is the one with the higher median."
    )
    return Section("paths: conditional disaggregation", method, tuple(goals), tuple(tables))


def better(goodputs: Goodputs, cell: Cell, share: float, split: str) -> Arm:
    """Return the better of aggregated and disaggregated by the median."""
    return max((AGGREGATED, arms(split)[0]), key=lambda arm: statistics.median(goodputs[cell, share, arm]))


def worst(goodputs: Goodputs, cell: Cell, split: str) -> tuple[float, tuple[float, ...]]:
    """Return the load at which conditional does worst, and its ratios there."""
    found = {
        share: ratios(
            goodputs[cell, share, arms(split)[1]], goodputs[cell, share, better(goodputs, cell, share, split)]
        )
        for share in SHARES
    }
    share = min(found, key=lambda share: statistics.median(found[share]))
    return share, found[share]


def _row(goodputs: Goodputs, cell: Cell, share: float, split: str) -> tuple[str, ...]:
    names = (AGGREGATED, *arms(split))
    cells = [in_words(goodputs[cell, share, arm]) for arm in names]
    return cell.name, f"{share:g} ×", *cells, in_words(worst(goodputs, cell, split)[1])
