"""The tables: `slack` beside the best other arm in every cell, and every arm over all cells."""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.rivals.cases import Case, Outcome
from sim.reporting.section import Goal, Section, markdown, ratios, table
from sim.reporting.tables import cell as in_words

OURS = "slack"
LEAST_RATIO = 0.95
LEAST_KEPT = 0.99

MEANS = (
    "situation", "fleet", "load", "policy", "placement", "seeds", "offered_per_s", "good_per_s", "good_share",
    "longest_good_share", "refused_share", "kept_share", "worker_s_per_good", "commits",
)  # fmt: skip
"""The columns of the file of means."""

Outcomes = Mapping[Case, Outcome]


@dataclass(frozen=True, slots=True)
class Cell:
    """One situation at one load on one fleet, of which all decode or some only compute prompts."""

    situation: str
    fleet: str
    load: float

    @property
    def is_split(self) -> bool:
        return "p" in self.fleet

    def __str__(self) -> str:
        return f"{self.situation}, {self.fleet}, {self.load:g} ×"


@dataclass(frozen=True, slots=True)
class Contest:
    """A cell: the outcomes of each arm, one per seed."""

    cell: Cell
    by_arm: Mapping[str, Sequence[Outcome]]

    @property
    def ours(self) -> str:
        """The arm of `slack` with the most good requests."""
        return self._best(arm for arm in self.by_arm if arm.startswith(OURS))

    @property
    def best_other(self) -> str:
        return self._best(arm for arm in self.by_arm if not arm.startswith(OURS))

    def _best(self, arms: Iterable[str]) -> str:
        return max(arms, key=lambda arm: statistics.median(self.good_per_s(arm)))

    def good_per_s(self, arm: str) -> list[float]:
        return [outcome.good_per_s for outcome in self.by_arm[arm]]

    def to_best_other(self, arm: str) -> tuple[float, ...]:
        """Return the ratios of an arm to the best that is not `slack`, seed by seed."""
        return ratios(self.good_per_s(arm), self.good_per_s(self.best_other))

    def to_best(self, arm: str) -> float:
        """Return the ratio of an arm's median to the best arm's."""
        best = max(statistics.median(self.good_per_s(each)) for each in self.by_arm)
        return statistics.median(self.good_per_s(arm)) / best if best else 1.0

    @property
    def kept(self) -> list[float]:
        """The share of promises that `slack` kept, of the seeds in which it made any."""
        return _known(outcome.kept_share for outcome in self.by_arm[self.ours])


def contests(outcomes: Outcomes) -> list[Contest]:
    """Return the cells in which both `slack` and another arm were played."""
    by_cell: dict[Cell, dict[str, list[Outcome]]] = defaultdict(lambda: defaultdict(list))
    for case, outcome in outcomes.items():
        by_cell[Cell(case.situation, case.fleet, case.load)][case.arm].append(outcome)
    return [
        Contest(cell, by_arm)
        for cell, by_arm in by_cell.items()
        if len({arm.startswith(OURS) for arm in by_arm}) == 2
    ]


def sections(outcomes: Outcomes) -> Iterator[Section]:
    """Yield every cell, then every arm."""
    every = contests(outcomes)
    seeds = len({case.seed for case in outcomes})
    wall_s = sum(outcome.wall_s for outcome in outcomes.values())
    method = (
        f"{len(outcomes)} runs, {seeds} seeds each, simulated in {wall_s / 3600:.1f} hours of one core. "
        "Loads are shares of what a fleet of workers of both roles carries by arithmetic. Good: finished "
        "with every latency met that was stated, per second of arrivals. In a split fleet, the better "
        "placement of each policy counts. The longest are the tenth of the requests with the longest prompts."
    )
    yield Section("rivals: every cell", method, tuple(_goals(every)), (_cells(every),))
    yield Section(
        "rivals: every arm",
        "Good requests of each arm by those of the cell's best arm, over all cells of its kind of fleet.",
        (),
        tuple(_arms(every, is_split=is_split) for is_split in (False, True)),
    )


def _goals(every: Sequence[Contest]) -> Iterator[Goal]:
    if not every:
        return
    worst = min(every, key=lambda contest: _median(contest.to_best_other(contest.ours)))
    claim = f"slack / best other arm: least of all cells ({worst.cell})"
    yield Goal(claim, worst.to_best_other(worst.ours), LEAST_RATIO)
    with_promises = [contest for contest in every if contest.kept]
    if with_promises:
        broken = min(with_promises, key=lambda contest: statistics.median(contest.kept))
        claim = f"promises kept: least of all cells ({broken.cell})"
        yield Goal(claim, tuple(broken.kept), LEAST_KEPT, spec=".3f")


def _cells(every: Sequence[Contest]) -> str:
    return table(
        every,
        {
            "situation": lambda each: each.cell.situation,
            "fleet": lambda each: each.cell.fleet,
            "load": lambda each: f"{each.cell.load:g} ×",
            "offered, 1/s": lambda each: f"{each.by_arm[each.ours][0].rate_per_s:.1f}",
            "slack, good/s": lambda each: in_words(each.good_per_s(each.ours)),
            "refused": lambda each: _share([run.refused_share for run in each.by_arm[each.ours]]),
            "kept": lambda each: _share(each.kept),
            "good of the longest": lambda each: _longest(each.by_arm[each.ours]),
            "worker-s each": lambda each: _worker_s(each.by_arm[each.ours]),
            "best other": lambda each: each.best_other,
            "its good/s": lambda each: in_words(each.good_per_s(each.best_other)),
            "of the longest": lambda each: _longest(each.by_arm[each.best_other]),
            "its worker-s each": lambda each: _worker_s(each.by_arm[each.best_other]),
            "slack by it": _verdict,
        },
    )


def _verdict(contest: Contest) -> str:
    figures = contest.to_best_other(contest.ours)
    words = in_words(figures)
    return f"**{words}**" if figures and _median(figures) < LEAST_RATIO else words


def _arms(every: Sequence[Contest], *, is_split: bool) -> str:
    alike = [contest for contest in every if contest.cell.is_split == is_split]
    loads = sorted({contest.cell.load for contest in alike})
    arms = dict.fromkeys(arm for contest in alike for arm in contest.by_arm)

    def row(arm: str) -> list[str]:
        own = [contest for contest in alike if arm in contest.by_arm]
        shares = [contest.to_best(arm) for contest in own]
        at = [
            [contest.to_best(arm) for contest in own if contest.cell.load == load] or [float("nan")]
            for load in loads
        ]
        return [arm, *(f"{statistics.fmean(part):.2f}" for part in at), f"{min(shares):.2f}"]

    header = ["arm", *(f"mean at {load:g} ×" for load in loads), "least of all cells"]
    return markdown(header, map(row, arms))


def write_means(outcomes: Outcomes, path: Path) -> None:
    """Write a line for each arm and cell: means over the seeds, and the commits that played it."""
    by_arm: dict[Case, list[Outcome]] = defaultdict(list)
    for case, outcome in outcomes.items():
        by_arm[replace(case, seed=0)].append(outcome)
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(MEANS)
        for case, own in by_arm.items():
            means = (
                _mean([outcome.rate_per_s for outcome in own], ".2f"),
                _mean([outcome.good_per_s for outcome in own], ".2f"),
                _mean([outcome.good_share for outcome in own], ".4f"),
                _mean([outcome.longest_good_share for outcome in own], ".4f"),
                _mean([outcome.refused_share for outcome in own], ".4f"),
                _mean(_known(outcome.kept_share for outcome in own), ".4f"),
                _mean(_known(outcome.worker_s_per_good for outcome in own), ".3f"),
            )
            commits = " ".join(sorted({outcome.commit for outcome in own}))
            where = (case.situation, case.fleet, case.load, case.policy, case.placement, len(own))
            lines.writerow((*where, *means, commits))


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _median(figures: Sequence[float]) -> float:
    """Return the median; 1 without figures, since then neither arm has a good request."""
    return statistics.median(figures) if figures else 1.0


def _mean(values: Sequence[float], spec: str) -> str:
    return format(statistics.fmean(values), spec) if values else ""


def _share(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1%}" if values else "–"


def _longest(runs: Sequence[Outcome]) -> str:
    return _share([run.longest_good_share for run in runs])


def _worker_s(runs: Sequence[Outcome]) -> str:
    costs = _known(run.worker_s_per_good for run in runs)
    return f"{statistics.median(costs):.2f}" if costs else "–"
