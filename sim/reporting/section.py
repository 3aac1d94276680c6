"""Measured figures as Markdown: the median over paired seeds with its range, and the goal beside it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sim.reporting.tables import cell

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Goal:
    """A claim, as measured: one figure per seed."""

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
        """True if the median over the seeds meets the bound; False without figures."""
        return self.median >= self.bound if self.at_least else self.median <= self.bound

    def row(self) -> tuple[str, str, str, str]:
        """Return claim, goal, measured figure, and verdict."""
        sign = "≥" if self.at_least else "≤"
        goal = f"{sign} {format(self.bound, self.spec)}"
        return self.claim, goal, cell(self.figures, spec=self.spec), "met" if self.is_met else "**missed**"


def at_most(claim: str, figures: Iterable[float], bound: float, spec: str = ".2f") -> Goal:
    """Return the goal that the median of the figures stays below the bound or meets it."""
    return Goal(claim, tuple(map(float, figures)), bound, at_least=False, spec=spec)


@dataclass(frozen=True, slots=True)
class Section:
    """The measurement of a claim: its method, its goals, and the tables behind them."""

    title: str
    method: str
    goals: tuple[Goal, ...]
    tables: tuple[str, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    """Further data for the JSON."""

    def markdown(self) -> str:
        goals = markdown(("claim", "goal", "measured", ""), [goal.row() for goal in self.goals])
        tables = (goals, *self.tables) if self.goals else self.tables
        return "\n\n".join((f"### {self.title}", self.method, *tables))

    def as_dict(self) -> dict[str, object]:
        """Return the section for JSON."""
        rows = [
            {name: getattr(goal, name) for name in ("claim", "bound", "at_least", "figures", "is_met")}
            for goal in self.goals
        ]
        return {"title": self.title, "method": self.method, "goals": rows, "tables": self.tables, **self.data}


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; the first column is text, the others are figures."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def table(rows: Iterable[T], columns: Mapping[str, Callable[[T], object]]) -> str:
    """Return a table with a line for each row. `columns` maps each header to what it shows of a row."""
    return markdown(list(columns), ([str(column(row)) for column in columns.values()] for row in rows))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, ...]:
    """Return ratios seed by seed. A seed in which both are 0 has no ratio; infinity if only `theirs` is."""
    pairs = zip(ours, theirs, strict=True)
    return tuple(our / other if other else math.inf for our, other in pairs if our or other)
