"""When each running choice's next token is due, by what was promised to it.

A promise on the mean (TPOT) draws a line, which a late token keeps unless it is hopeless
(`scheduling/lateness.py`). A promise on each gap (ITL): the next token is due one ITL after the last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduling.lateness import HOPELESS_GAPS, MEAN_GAPS, least_slack, next_due

_Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Due:
    """One choice's times, on the engine's clock; infinite without a promise."""

    mean_s: float = -math.inf
    """By its TPOT alone; minus infinity before the first token."""
    next_s: float = math.inf
    """By whichever promise comes first."""


def after_first_token(tpot_ms: int | None, itl_ms: int | None, first_token_s: float) -> Due:
    """Of a choice whose first token came at `first_token_s`."""
    mean_s = first_token_s + _seconds(tpot_ms)
    return Due(mean_s, min(mean_s, first_token_s + _seconds(itl_ms)))


class DueTimes:
    """Columns over the rows of a batch."""

    def __init__(self, max_rows: int) -> None:
        self.next_due = np.full(max_rows, math.inf)
        self._mean_due = np.zeros(max_rows)
        self._tpot = np.full(max_rows, math.inf)
        self._itl = np.full(max_rows, math.inf)
        self._gap_limit = np.full(max_rows, math.inf)
        self._hope = np.zeros(max_rows)
        self.columns = (self.next_due, self._mean_due, self._tpot, self._itl, self._gap_limit, self._hope)

    def set(self, row: int, tpot_ms: int | None, itl_ms: int | None, due: Due) -> None:
        """Describe a row that joins; `Due()` if its first token comes with this step."""
        tpot, itl = _seconds(tpot_ms), _seconds(itl_ms)
        self._tpot[row], self._itl[row] = tpot, itl
        self._gap_limit[row] = min(itl, MEAN_GAPS * tpot)
        self._hope[row] = 0.0 if tpot_ms is None else HOPELESS_GAPS * tpot
        self._mean_due[row], self.next_due[row] = due.mean_s, due.next_s

    def get(self, row: int) -> Due:
        return Due(float(self._mean_due[row]), float(self.next_due[row]))

    def advance(self, rows: NDArray[np.int64], now_s: float) -> None:
        """Each of `rows` got a token at `now_s`."""
        mean_due = next_due(self._mean_due[rows], self._tpot[rows], now_s)
        self._mean_due[rows] = mean_due
        self.next_due[rows] = np.minimum(mean_due, self._itl[rows] + now_s)

    def slack_s(self, num_rows: int, now_s: float, is_pending: NDArray[np.bool_] | None = None) -> float:
        """Of the first `num_rows` at `now_s`, when those that are pending [num_rows] get a token first."""
        rows = slice(num_rows)
        due = self.next_due[rows]
        if is_pending is not None:
            mean_due = next_due(self._mean_due[rows], self._tpot[rows], now_s)
            due = np.where(is_pending, np.minimum(mean_due, self._itl[rows] + now_s), due)
        return least_slack(due, self._hope[rows], now_s)

    def gap_limit_s(self, num_rows: int) -> float:
        return float(self._gap_limit[:num_rows].min(initial=math.inf))


def _seconds(milliseconds: int | None) -> float:
    return math.inf if milliseconds is None else milliseconds / 1000
