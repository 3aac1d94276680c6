"""Compare `slack` with every other arm, in every cell of workload and promise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.claims.runs.cells import WORKLOADS, Cell, estimate, grid
from benchmarks.claims.runs.play import Arm, Case, goodput, play, profile
from benchmarks.claims.runs.settings import Settings
from benchmarks.claims.runs.tasks import Workers
from reporting.section import Goal, Section, markdown, ratios
from reporting.tables import cell as in_words
from sim.workload import Promises

TAUS = (128, 256, 512, 1024, 2048)
FIXED = tuple(Arm("chunked", tau) for tau in TAUS)
OTHERS = (Arm("static"), Arm("dynamic"), Arm("orca"), Arm("prefill_first"), *FIXED)
SLACK = Arm("slack")
SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1)
"""Rates as shares of what a worker carries by arithmetic under the loosest promise."""
BEYOND = 1.25
"""Rates beyond the peak are at least this multiple of the best arm's peak."""
MOST_RATIO = 10.0
"""Larger ratios, to a figure near zero, count as this."""

Goodputs = Mapping[tuple[Arm, float], Sequence[float]]
"""The figures of one cell by arm and rate, one per seed."""


@dataclass(frozen=True, slots=True)
class Contest:
    """One cell: the other arms at all rates, and `slack` at the rates that matter."""

    cell: Cell
    goodputs: Goodputs

    @property
    def best(self) -> tuple[Arm, float]:
        """Return the best of the other arms, and the rate of its peak."""
        return max(
            (key for key in self.goodputs if key[0] != SLACK),
            key=lambda key: (statistics.median(self.goodputs[key]), -key[1]),
        )

    def to_best(self, rate: float) -> tuple[float, ...]:
        """Return the ratio of `slack` at `rate` to the best arm's peak."""
        return ratios(self.goodputs[SLACK, rate], self.goodputs[self.best])

    def to_arm(self, arm: Arm, rate: float) -> tuple[float, ...]:
        """Return the ratio of `slack` to an arm at the same rate."""
        return ratios(self.goodputs[SLACK, rate], self.goodputs[arm, rate])

    def peak(self, arm: Arm) -> tuple[float, ...]:
        """Return an arm's figures at its best rate."""
        rates = [key for key in self.goodputs if key[0] == arm]
        return tuple(self.goodputs[max(rates, key=lambda key: statistics.median(self.goodputs[key]))])


def measure(workers: Workers, settings: Settings) -> Section:
    """Run every other arm at every rate, then `slack` at the best arm's peak of every cell, and beyond."""
    contests = [contest for workload in WORKLOADS for contest in _contests(workers, settings, workload)]
    return section(contests, settings)


def _contests(workers: Workers, settings: Settings, workload: str) -> Iterator[Contest]:
    cells = list(grid(profile(), workload))
    if settings.is_quick:
        cells = [cell for cell in cells if cell.ttft_ratio == 10.0]
    loosest = estimate(profile(), workload, max(cell.promises.tpot_ms or 0 for cell in cells))
    rates = [share * loosest for share in SHARES]
    known = _others(workers, settings, workload, cells, rates)
    cases = [
        Case(SLACK, workload, rate, seed, settings.span_s, cell.promises)
        for cell in cells
        for rate in _where(Contest(cell, known[cell]), rates)
        for seed in settings.seeds
    ]
    tasks = [partial(_goodputs, case, (case.promises,)) for case in cases]
    found = workers.map(f"grid, {workload}, slack", tasks)
    for case, figures in zip(cases, found, strict=True):
        own = known[next(cell for cell in cells if cell.promises == case.promises)]
        own.setdefault((SLACK, case.rate_per_s), []).extend(figures)
    for cell in cells:
        yield Contest(cell, known[cell])


def _where(contest: Contest, rates: Sequence[float]) -> tuple[float, float]:
    """Return the rate of the best arm's peak, and the first rate well beyond it."""
    _, peak = contest.best
    return peak, next((rate for rate in rates if rate >= BEYOND * peak - 1e-9), rates[-1])


def _others(
    workers: Workers, settings: Settings, workload: str, cells: Sequence[Cell], rates: Sequence[float]
) -> dict[Cell, dict[tuple[Arm, float], list[float]]]:
    """Run the other arms. They ignore promises, so each run is judged by the promises of every cell."""
    cases = [
        Case(arm, workload, rate, seed, settings.span_s)
        for arm in OTHERS
        for rate in rates
        for seed in settings.seeds
    ]
    promises = tuple(cell.promises for cell in cells)
    found = workers.map(f"grid, {workload}", [partial(_goodputs, case, promises) for case in cases])
    known: dict[Cell, dict[tuple[Arm, float], list[float]]] = {cell: {} for cell in cells}
    for case, figures in zip(cases, found, strict=True):
        for cell, figure in zip(cells, figures, strict=True):
            known[cell].setdefault((case.arm, case.rate_per_s), []).append(figure)
    return known


def _goodputs(case: Case, promises: Sequence[Promises]) -> list[float]:
    played = play(case)
    return [goodput(played, promise) for promise in promises]


def section(contests: Sequence[Contest], settings: Settings) -> Section:
    """Return goals and tables."""
    rows = [_row(contest) for contest in contests]
    header = (
        "cell",
        "best other arm",
        "its peak, good/s",
        "at, 1/s",
        "slack there",
        "beyond, 1/s",
        "slack there",
    )
    goals = (
        _worst(contests, "slack / best other arm's peak, at its peak: least of all cells", at_peak=True),
        _worst(contests, "the same, offered 1.25 × as much or more", at_peak=False),
        *_means(contests),
    )
    method = (
        f"One worker, {settings.words}. All other arms run at "
        f"{len(SHARES)} rates; `slack` where the best of them peaks in that cell and beyond, as a ratio to "
        f"that peak, seed by seed. Ratios are cut at {MOST_RATIO:g}."
    )
    return Section("grid: slack against every other arm", method, goals, (markdown(header, rows),))


def _rates(contest: Contest) -> list[float]:
    """Return the rates of `slack`: the best other arm's peak, then beyond."""
    return sorted(rate for arm, rate in contest.goodputs if arm == SLACK)


def _worst(contests: Sequence[Contest], claim: str, *, at_peak: bool) -> Goal:
    found = {
        contest.cell.name: contest.to_best(_rates(contest)[0 if at_peak else -1]) for contest in contests
    }
    name = min(found, key=lambda name: statistics.median(found[name]))
    return Goal(f"{claim} ({name})", found[name], 0.95)


def _means(contests: Sequence[Contest]) -> Iterator[Goal]:
    """Compare with each fixed budget: at the same rates, and each at its own best rate."""
    for arm in FIXED:
        same = [
            [contest.to_arm(arm, rate) for contest in contests for rate in [_rates(contest)[place]]]
            for place in (0, -1)
        ]
        yield Goal(f"slack / {arm.name}, same rate, at the peak: geometric mean", _mean(same[0]), 1.15)
        yield Goal(f"slack / {arm.name}, same rate, beyond: geometric mean", _mean(same[1]), 1.15)
        own = [ratios(contest.peak(SLACK), contest.peak(arm)) for contest in contests]
        yield Goal(f"slack / {arm.name}, each at its own best rate: geometric mean", _mean(own), 1.15)


def _mean(found: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return the geometric mean over cells, seed by seed."""
    return tuple(
        statistics.geometric_mean([min(MOST_RATIO, max(1 / MOST_RATIO, figure)) for figure in figures])
        for figures in zip(*found, strict=True)
        if not any(math.isnan(figure) for figure in figures)
    )


def _row(contest: Contest) -> tuple[str, ...]:
    arm, peak = contest.best
    at, beyond = _rates(contest)[0], _rates(contest)[-1]
    return (
        contest.cell.name,
        arm.name,
        in_words(contest.goodputs[arm, peak]),
        f"{at:.1f}",
        in_words(contest.to_best(at)),
        f"{beyond:.1f}",
        in_words(contest.to_best(beyond)),
    )
