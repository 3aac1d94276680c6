"""When the next token of a promised pace is due, and how long a late one is still worth hurrying for.

A pace (TPOT) is a promise on the mean: the n-th token is due at first token + n · TPOT. A late token does not
move these due times, since shorter gaps can make up for a long one: one step in twenty lasts longer than its
95 % quantile, and moving the due times would give up a promise that the next steps still keep. Only if a
token is so late that catching up would force the shortest steps on all others do its due times start anew.

All functions take one row or columns of rows, in seconds.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

MEAN_GAPS = 3.0
"""How many TPOTs one gap may last: shorter gaps can make up for it in the mean."""
HOPELESS_GAPS = 3.0
"""How many TPOTs a token may be late before its due times start anew, and it counts as missed."""

_Column = NDArray[np.float64]


def next_line(
    start_s: _Column, num_gaps: NDArray[np.int64], tpot_s: _Column, now_s: float
) -> tuple[_Column, NDArray[np.int64]]:
    """Return the lines of rows that got a token at `now_s`; hopeless rows, and those without one, start anew.

    A row's next token is due at `start_s + num_gaps · tpot_s`. A row that has no line yet starts at minus
    infinity; a row without a pace has a `tpot_s` of 0 and a line at infinity.
    """
    starts_anew = start_s + num_gaps * tpot_s < now_s - HOPELESS_GAPS * tpot_s
    return np.where(starts_anew, now_s, start_s), np.where(starts_anew, 1, num_gaps + 1)


def least_slack(due_s: _Column, hope_s: _Column, now_s: float) -> float:
    """Return the seconds until the earliest due token; 0 while a token is late by at most its `hope_s`.

    Rows that are later than that do not count. The result is infinite if no row counts.
    """
    if due_s.size and (nearest := float(np.minimum.reduce(due_s))) >= now_s:
        return nearest - now_s
    earliest = float(np.minimum.reduce(due_s, where=due_s >= now_s - hope_s, initial=math.inf))
    return max(0.0, earliest - now_s)
