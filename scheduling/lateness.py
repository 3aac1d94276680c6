"""When the next token of a promised pace is due, and for how long a late one is still worth hurrying for.

A pace (TPOT) is a promise on the mean: the n-th token is due at first token + n · TPOT. A late token keeps
that line, since a mean stands a long gap that shorter ones make good: one step in twenty lasts longer than
its 95 % quantile, and restarting the line there would give up a promise that the next steps still keep. Only
a token so late that catching up would hold everybody else to the shortest steps starts a line of its own.

All are functions of one row or of columns of rows, in seconds.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

MEAN_GAPS = 3.0
"""How many TPOTs one gap may last: a mean stands a long gap that shorter ones make good."""
HOPELESS_GAPS = 3.0
"""How many TPOTs a token may be late before its line starts anew, counting it as missed."""

_Column = NDArray[np.float64]


def next_due(due_s: _Column, tpot_s: _Column, now_s: float) -> _Column:
    """When the next token is due after the one that was due at `due_s` came at `now_s`; infinite without a
    pace. Rows that have no line yet are due at minus infinity.
    """
    starts_anew = (due_s < now_s - HOPELESS_GAPS * tpot_s) | np.isneginf(due_s)
    return np.where(starts_anew, now_s, due_s) + tpot_s


def least_slack(due_s: _Column, hope_s: _Column, now_s: float) -> float:
    """Seconds until the earliest due token; 0 while one is late by at most its `hope_s`, since every moment
    then makes it later. Rows beyond hope do not count; infinite where nothing counts.
    """
    if due_s.size and (nearest := float(due_s.min())) >= now_s:
        return nearest - now_s
    earliest = float(np.min(due_s, where=due_s >= now_s - hope_s, initial=math.inf))
    return max(0.0, earliest - now_s)
