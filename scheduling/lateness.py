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


def next_due(due_s: _Column, tpot_s: _Column, now_s: float) -> _Column:
    """Return when the next token is due after the one due at `due_s` came at `now_s`.

    It is infinite without a pace. `due_s` is minus infinity for rows without a token so far.
    """
    starts_anew = (due_s < now_s - HOPELESS_GAPS * tpot_s) | np.isneginf(due_s)
    return np.where(starts_anew, now_s, due_s) + tpot_s


def least_slack(due_s: _Column, hope_s: _Column, now_s: float) -> float:
    """Return the seconds until the earliest due token; 0 while a token is late by at most its `hope_s`.

    Rows that are later than that do not count. The result is infinite if no row counts.
    """
    if due_s.size and (nearest := float(due_s.min())) >= now_s:
        return nearest - now_s
    earliest = float(np.min(due_s, where=due_s >= now_s - hope_s, initial=math.inf))
    return max(0.0, earliest - now_s)
