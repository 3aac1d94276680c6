"""Compare `slack` with every other arm, in every cell of workload and promise."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.claims.cells import WORKLOADS, Cell, estimate, grid
from benchmarks.claims.lab import Lab, Settings
from benchmarks.claims.play import Case, SimArm, goodput, own_goodput, play
from sim.reporting.section import Goal, Section, ratios, table
from sim.reporting.tables import cell as in_words
from sim.workload import Promises

TAUS = (128, 256, 512, 1024, 2048)
FIXED = tuple(SimArm("chunked", tau) for tau in TAUS)
OTHERS = (
    SimArm("static"),
    SimArm("dynamic"),
    SimArm("orca"),
    SimArm("prefill_first"),
    *FIXED,
)
SLACK = SimArm("slack")
SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1)
"""Rates as shares of what a worker carries by arithmetic under the loosest promise."""
BEYOND = 1.25
"""Rates beyond the peak are at least this multiple of the best arm's peak."""
MOST_RATIO = 10.0
"""Larger ratios, to a figure near zero, count as this."""

Goodputs = Mapping[tuple[SimArm, float], Sequence[float]]
"""The figures of one cell by arm and rate, one per seed."""


@dataclass(frozen=True, slots=True)
class Contest:
    """One cell: the other arms at all rates, and `slack` at the rates that matter."""

    cell: Cell
    goodputs: Goodputs

    @property
    def best(self) -> tuple[SimArm, float]:
        """The best of the other arms, and the rate of its peak."""
        return max(
            (key for key in self.goodputs if key[0] != SLACK),
            key=lambda key: (statistics.median(self.goodputs[key]), -key[1]),
        )

    @property
    def rates(self) -> list[float]:
        """The rates of `slack`: the best other arm's peak, then beyond."""
        return sorted(rate for arm, rate in self.goodputs if arm == SLACK)

    def to_best(self, rate: float) -> tuple[float, ...]:
        """Return the ratio of `slack` at `rate` to the best arm's peak."""
        return ratios(self.goodputs[SLACK, rate], self.goodputs[self.best])

    def to_arm(self, arm: SimArm, rate: float) -> tuple[float, ...]:
        """Return the ratio of `slack` to an arm at the same rate."""
        return ratios(self.goodputs[SLACK, rate], self.goodputs[arm, rate])

    def peak(self, arm: SimArm) -> tuple[float, ...]:
        """Return an arm's figures at its best rate."""
        return tuple(
            max((self.goodputs[key] for key in self.goodputs if key[0] == arm), key=statistics.median)
        )


def measure(lab: Lab) -> Section:
    """Run every other arm at every rate, then `slack` at the best arm's peak of every cell, and beyond."""
    return section([contest for name in WORKLOADS for contest in _contests(lab, name)], lab.settings)


def _contests(lab: Lab, workload: str) -> list[Contest]:
    """Run the other arms once for all cells: they ignore promises, so each run is judged by those of each."""
    cells = grid(workload, is_quick=lab.settings.is_quick)
    loosest = estimate(workload, max(cell.promises.tpot_ms or 0 for cell in cells))
    rates = [share * loosest for share in SHARES]
    cases = {(arm, rate): Case(arm, workload, rate) for arm in OTHERS for rate in rates}
    by_promises = partial(_goodputs, promises=[cell.promises for cell in cells])
    others = lab.judge(f"grid, {workload}", cases, by_promises)
    contests = [
        Contest(cell, {key: [figures[place] for figures in seeds] for key, seeds in others.items()})
        for place, cell in enumerate(cells)
    ]
    slack_cases = {
        (contest.cell, rate): Case(SLACK, workload, rate, contest.cell.promises)
        for contest in contests
        for rate in _where(contest, rates)
    }
    slack = lab.judge(f"grid, {workload}, slack", slack_cases, own_goodput)
    return [
        replace(contest, goodputs={**contest.goodputs, **at_rates})
        for contest in contests
        for at_rates in [{(SLACK, rate): slack[contest.cell, rate] for rate in _where(contest, rates)}]
    ]


def _where(contest: Contest, rates: Sequence[float]) -> tuple[float, float]:
    """Return the rate of the best arm's peak, and the first rate well beyond it."""
    _, peak = contest.best
    return peak, next((rate for rate in rates if rate >= BEYOND * peak - 1e-9), rates[-1])


def _goodputs(case: Case, promises: Sequence[Promises]) -> list[float]:
    played = play(case)
    return [goodput(played, promise) for promise in promises]


def section(contests: Sequence[Contest], settings: Settings) -> Section:
    """Return goals and tables."""
    columns: dict[str, Callable[[Contest], str]] = {
        "cell": lambda contest: contest.cell.name,
        "best other arm": lambda contest: contest.best[0].name,
        "its peak, good/s": lambda contest: in_words(contest.goodputs[contest.best]),
        "at, 1/s": lambda contest: f"{contest.rates[0]:.1f}",
        "slack there": lambda contest: in_words(contest.to_best(contest.rates[0])),
        "beyond, 1/s": lambda contest: f"{contest.rates[-1]:.1f}",
        "slack beyond": lambda contest: in_words(contest.to_best(contest.rates[-1])),
    }
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
    return Section("grid: slack against every other arm", method, goals, (table(contests, columns),))


def _worst(contests: Sequence[Contest], claim: str, *, at_peak: bool) -> Goal:
    ratios_by_cell = {
        contest.cell.name: contest.to_best(contest.rates[0 if at_peak else -1]) for contest in contests
    }
    name = min(ratios_by_cell, key=lambda name: statistics.median(ratios_by_cell[name]))
    return Goal(f"{claim} ({name})", ratios_by_cell[name], 0.95)


def _means(contests: Sequence[Contest]) -> Iterator[Goal]:
    """Compare with each fixed budget: at the same rates, and each at its own best rate."""
    for arm in FIXED:
        means = {
            "same rate, at the peak": [contest.to_arm(arm, contest.rates[0]) for contest in contests],
            "same rate, beyond": [contest.to_arm(arm, contest.rates[-1]) for contest in contests],
            "each at its own best rate": [
                ratios(contest.peak(SLACK), contest.peak(arm)) for contest in contests
            ],
        }
        for where, ratios_by_cell in means.items():
            yield Goal(f"slack / {arm.name}, {where}: geometric mean", _mean(ratios_by_cell), 1.15)


def _mean(ratios_by_cell: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return the geometric mean over cells, seed by seed."""
    return tuple(
        statistics.geometric_mean([min(MOST_RATIO, max(1 / MOST_RATIO, figure)) for figure in figures])
        for figures in zip(*ratios_by_cell, strict=True)
    )
