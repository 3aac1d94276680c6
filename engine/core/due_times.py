"""When each running choice's next token is due, by what was promised to it.

A promise on each gap (ITL): the next token is due one ITL after the last. A pace (TPOT) is a promise on the
mean: the n-th token is due at first token + n · TPOT. A late token does not move these due times, since
shorter gaps can make up for a long one: one step in twenty lasts longer than its 95 % quantile, and moving
the due times would give up a promise that the next steps still keep. Only if a token is so late that catching
up would force the shortest steps on all others do its due times start anew.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduling.value import value

ROUNDING_S = 1e-6
"""Sums are rounded by less than that."""
MEAN_GAPS = 3.0
"""How many TPOTs one gap may last: shorter gaps can make up for it in the mean."""
HOPELESS_GAPS = 3.0
"""How many TPOTs a token may be late before its due times start anew, and it counts as missed."""

_Column = NDArray[np.float64]


@value
class Due:
    """One choice's times, on the engine's clock; infinite without a promise."""

    mean_s: float = -math.inf
    """By its TPOT alone; minus infinity before the first token."""
    next_s: float = math.inf
    """By whichever promise comes first."""


def after_first_token(tpot_ms: int | None, itl_ms: int | None, first_token_s: float) -> Due:
    """Return the times of a choice whose first token came at `first_token_s`."""
    mean_s = first_token_s + _seconds(tpot_ms)
    return Due(mean_s, min(mean_s, first_token_s + _seconds(itl_ms)))


class DueTimes:
    """Columns over the rows of a batch. A row's line says: due at `line` + `gaps` · TPOT.

    One gap may last up to `mean_gaps` TPOTs.
    """

    def __init__(self, max_rows: int, mean_gaps: float = MEAN_GAPS) -> None:
        self._mean_gaps = mean_gaps
        self.next_due = np.full(max_rows, math.inf)
        self.line = np.full(max_rows, math.inf)
        self.gaps = np.zeros(max_rows)
        """Whole numbers, as floats: they are multiplied by times."""
        self.tpot = np.zeros(max_rows)
        """0 without a promise on the mean; the line is then at infinity."""
        self._itl = np.full(max_rows, math.inf)
        self._gap_limit = np.full(max_rows, math.inf)
        self._hope = np.zeros(max_rows)
        self.columns: tuple[NDArray[Any], ...] = (
            self.next_due, self.line, self.gaps, self.tpot, self._itl, self._gap_limit, self._hope,
        )  # fmt: skip

    def set(self, row: int, tpot_ms: int | None, itl_ms: int | None, due: Due) -> None:
        """Describe a row that joins; `Due()` if its first token comes with this step."""
        tpot, itl = _seconds(tpot_ms), _seconds(itl_ms)
        has_pace = tpot_ms is not None
        self.tpot[row], self._itl[row] = (tpot if has_pace else 0.0), itl
        self._gap_limit[row] = min(itl, self._mean_gaps * tpot)
        self._hope[row] = HOPELESS_GAPS * tpot if has_pace else 0.0
        self.line[row], self.gaps[row] = (due.mean_s if has_pace else math.inf), 0
        self.next_due[row] = due.next_s

    def get(self, row: int) -> Due:
        mean_s = float(self.line[row] + self.gaps[row] * self.tpot[row])
        return Due(mean_s, float(self.next_due[row]))

    def advance(self, rows: slice | NDArray[np.int64], now_s: float) -> None:
        """Each of `rows` got a token at `now_s`."""
        self.line[rows], self.gaps[rows] = self._after_token(rows, now_s)
        self._set_next(rows, now_s)

    def skip(self, row: int, num_tokens: int) -> None:
        """A row gets so many tokens with its next one, and is due by as many paces later."""
        self.gaps[row] += num_tokens

    def slack_s(self, num_rows: int, now_s: float, is_pending: NDArray[np.bool_] | None = None) -> float:
        """Return the least slack of the first `num_rows` at `now_s`; pending ones get a token before that."""
        rows = slice(num_rows)
        due = self.next_due[rows]
        if is_pending is not None:
            line, gaps = self._after_token(rows, now_s)
            foreseen = np.minimum(line + gaps * self.tpot[rows], self._itl[rows] + now_s)
            due = np.where(is_pending, foreseen, due)
        return least_slack(due, self._hope[rows], now_s)

    def gap_limit_s(self, num_rows: int) -> float:
        return float(np.minimum.reduce(self._gap_limit[:num_rows], initial=math.inf))

    def _after_token(
        self, rows: slice | NDArray[np.int64], now_s: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return next_line(self.line[rows], self.gaps[rows], self.tpot[rows], now_s)

    def _set_next(self, rows: slice | NDArray[np.int64], now_s: float) -> None:
        mean_due = self.line[rows] + self.gaps[rows] * self.tpot[rows]
        self.next_due[rows] = np.minimum(mean_due, self._itl[rows] + now_s)


def _seconds(milliseconds: int | None) -> float:
    return math.inf if milliseconds is None else milliseconds / 1000


def next_line(start_s: _Column, num_gaps: _Column, tpot_s: _Column, now_s: float) -> tuple[_Column, _Column]:
    """Return the lines of rows that got a token at `now_s`; hopeless rows, and those without one, start anew.

    A row's next token is due at `start_s + num_gaps · tpot_s`. A row that has no line yet starts at minus
    infinity; a row without a pace has a `tpot_s` of 0 and a line at infinity.
    """
    starts_anew = start_s + num_gaps * tpot_s < now_s - HOPELESS_GAPS * tpot_s
    num_gaps = num_gaps + 1
    if np.logical_or.reduce(starts_anew):
        start_s = np.where(starts_anew, now_s, start_s)
        num_gaps[starts_anew] = 1
    return start_s, num_gaps


def least_slack(due_s: _Column, hope_s: _Column, now_s: float) -> float:
    """Return the seconds until the earliest due token; 0 while a token is late by at most its `hope_s`.

    Rows that are later than that do not count. The result is infinite if no row counts.
    """
    if due_s.size and (nearest := float(np.minimum.reduce(due_s))) >= now_s:
        return nearest - now_s
    earliest = float(np.minimum.reduce(due_s, where=due_s >= now_s - hope_s, initial=math.inf))
    return max(0.0, earliest - now_s)
