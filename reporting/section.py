"""Measured figures as Markdown: the median over paired seeds with its range, and the goal beside it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reporting.tables import cell


@dataclass(frozen=True, slots=True)
class Goal:
    """One claim, as measured: one figure per seed."""

    claim: str
    figures: tuple[float, ...]
    bound: float
    at_least: bool = True
    spec: str = ".2f"

    @property
    def median(self) -> float:
        return statistics.median(self.figures) if self.figures else math.nan

    @property
    def is_met(self) -> bool:
        """By the median over the seeds; without figures nothing is met."""
        return self.median >= self.bound if self.at_least else self.median <= self.bound

    def row(self) -> tuple[str, str, str, str]:
        """Claim, goal, measured, verdict."""
        sign = "≥" if self.at_least else "≤"
        goal = f"{sign} {format(self.bound, self.spec)}"
        return self.claim, goal, cell(self.figures, spec=self.spec), "met" if self.is_met else "**missed**"


@dataclass(frozen=True, slots=True)
class Section:
    """What one claim's measurement says: how it was made, its goals, and the tables behind them."""

    title: str
    method: str
    goals: tuple[Goal, ...]
    tables: tuple[str, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    """What else is known, for JSON alone."""

    def markdown(self) -> str:
        goals = markdown(("claim", "goal", "measured", ""), [goal.row() for goal in self.goals])
        stated = (goals,) if self.goals else ()
        return "\n\n".join((f"### {self.title}", self.method, *stated, *self.tables))

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        rows = [
            {name: getattr(goal, name) for name in ("claim", "bound", "at_least", "figures", "is_met")}
            for goal in self.goals
        ]
        return {"title": self.title, "method": self.method, "goals": rows, "tables": self.tables, **self.data}


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; the first column is text, the others are figures."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, ...]:
    """Seed by seed; a seed in which they have nothing has no ratio, unless we have nothing either."""
    pairs = zip(ours, theirs, strict=True)
    return tuple(one / other if other else math.inf for one, other in pairs if one or other)


def geometric_mean(figures: Sequence[float]) -> float:
    """Raises ValueError for none, or for one that is not above 0."""
    if not figures or min(figures) <= 0:
        raise ValueError(f"a geometric mean of {list(figures)}; accepted: at least one, all above 0")
    return math.exp(statistics.fmean(math.log(one) for one in figures))
