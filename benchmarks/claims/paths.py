"""Compare conditional disaggregation with both of its alternatives, on as many workers."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.claims.cells import WORKLOADS, Cell, estimate, grid
from benchmarks.claims.lab import Lab, Settings
from benchmarks.claims.play import Case, SimArm, own_goodput
from scheduling.placement import Placement
from sim.reporting.section import Goal, Section, markdown, ratios
from sim.reporting.tables import cell as in_words

NUM_WORKERS = 4
AGGREGATED = SimArm("slack", None, Placement.AGGREGATED, "4d")
SPLITS = ("1p3d", "2p2d")
SHARES = (0.6, 0.8, 1.0)
"""Loads as shares of what the workers carry by arithmetic under the cell's TPOT."""

Goodputs = Mapping[tuple[Cell, float, SimArm], Sequence[float]]


def arms(split: str) -> tuple[SimArm, SimArm]:
    """Return the two arms that use this split."""
    return (
        SimArm("slack", None, Placement.DISAGGREGATED, split),
        SimArm("slack", None, Placement.CONDITIONAL, split),
    )


ARMS = (AGGREGATED, *(arm for split in SPLITS for arm in arms(split)))


def measure(lab: Lab) -> Section:
    """Run every arm in every cell at the same rates."""
    cells = [cell for name in WORKLOADS for cell in grid(name, is_quick=lab.settings.is_quick)]
    rates = {cell: estimate(cell.workload, cell.promises.tpot_ms, NUM_WORKERS) for cell in cells}
    cases = {
        (cell, share, arm): Case(arm, cell.workload, share * rates[cell], cell.promises)
        for cell in cells
        for share in SHARES
        for arm in ARMS
    }
    # Four workers see as many requests in half the time.
    return section(cells, lab.judge("paths", cases, own_goodput, span_share=0.5), lab.settings)


def section(cells: Sequence[Cell], goodputs: Goodputs, settings: Settings) -> Section:
    """Return goals and a table for each split."""
    goals, tables = [], []
    for split in SPLITS:
        worst_by_cell = {cell: worst(goodputs, cell, split) for cell in cells}
        least = min(worst_by_cell, key=lambda cell: statistics.median(worst_by_cell[cell][1]))
        share, figures = worst_by_cell[least]
        where = f"least of all cells ({least.name}, {share:g} ×)"
        goals.append(Goal(f"conditional {split} / better of 4d and {split}: {where}", figures, 0.95))
        header = (split, "load", "aggregated 4d, good/s", "disaggregated", "conditional", "by the better")
        rows = [
            (
                cell.name,
                f"{share:g} ×",
                *(in_words(goodputs[cell, share, arm]) for arm in (AGGREGATED, *arms(split))),
                in_words(figures),
            )
            for cell, (share, figures) in worst_by_cell.items()
        ]
        tables.append(markdown(header, rows))
    method = (
        f"{NUM_WORKERS} workers, policy slack, {settings.words} (half of that time): "
        f"aggregated on 4d, the others on the same split. Loads {SHARES} of what 4d carry by arithmetic; "
        "tables show the worst load of each cell. The better of the two is the one with the higher median."
    )
    return Section("paths: conditional disaggregation", method, tuple(goals), tuple(tables))


def better(goodputs: Goodputs, cell: Cell, share: float, split: str) -> SimArm:
    """Return the better of aggregated and disaggregated by the median."""
    return max((AGGREGATED, arms(split)[0]), key=lambda arm: statistics.median(goodputs[cell, share, arm]))


def worst(goodputs: Goodputs, cell: Cell, split: str) -> tuple[float, tuple[float, ...]]:
    """Return the load at which conditional does worst, and its ratios there."""
    conditional = arms(split)[1]
    share_ratios = {
        share: ratios(
            goodputs[cell, share, conditional], goodputs[cell, share, better(goodputs, cell, share, split)]
        )
        for share in SHARES
    }
    return min(share_ratios.items(), key=lambda at: statistics.median(at[1]))
