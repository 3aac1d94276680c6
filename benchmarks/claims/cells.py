"""The cells of the grid: promises as ratios of what the profile does without load."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.claims.play import profile
from scheduling.placement import Placement
from sim.commands.capacity import capacity_per_s, references
from sim.spec import FleetShape
from sim.workload import Promises, sample
from sim.workloads.slo import TPOT_RATIOS, TTFT_RATIOS

WORKLOADS = ("chat", "summarise", "mixed")
QUICK_TTFT_RATIO = 10.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One workload under one promise."""

    workload: str
    tpot_ratio: float
    ttft_ratio: float
    promises: Promises

    @property
    def name(self) -> str:
        return f"{self.workload}, TPOT {self.tpot_ratio:g} D, TTFT {self.ttft_ratio:g} ×"


def cell(workload: str, tpot_ratio: float, ttft_ratio: float) -> Cell:
    """Return the cell with one promise for all requests of a workload."""
    unloaded = references(profile(), sample(workload, 1.0), 1.0)
    promises = Promises(unloaded.ttft_ms(ttft_ratio), unloaded.tpot_ms(tpot_ratio))
    return Cell(workload, tpot_ratio, ttft_ratio, promises)


def grid(workload: str, *, is_quick: bool = False) -> list[Cell]:
    """Return the nine cells of one workload, the tightest first; if quick only those of one TTFT."""
    ratios = (QUICK_TTFT_RATIO,) if is_quick else TTFT_RATIOS
    return [cell(workload, tpot, ttft) for tpot in TPOT_RATIOS for ttft in ratios]


def estimate(workload: str, tpot_ms: int | None, num_workers: int = 1) -> float:
    """Return the most requests per second that workers of both roles would carry, by arithmetic."""
    tpot_s = None if tpot_ms is None else tpot_ms / 1000
    fleet = FleetShape(0, num_workers)
    return capacity_per_s(profile(), fleet, Placement.AGGREGATED, sample(workload, 1.0), tpot_s)
