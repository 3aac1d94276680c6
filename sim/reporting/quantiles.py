"""Quantiles by nearest rank: always one of the values, the least that such a share does not exceed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_ROUNDING = 1e-9
"""0.07 · 100 is slightly more than 7 in binary, and must count as 7."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """The quantiles of one metric, in seconds."""

    p50: float
    p90: float
    p99: float
    mean: float
    count: int


def rank(count: int, share: float) -> int:
    """Return the index of the quantile among `count` ordered values."""
    return min(count - 1, max(0, math.ceil(share * count - _ROUNDING) - 1))


def quantile(values: Sequence[float], share: float) -> float:
    """Return the quantile of values in any order; NaN without any."""
    return sorted(values)[rank(len(values), share)] if values else math.nan


def quantiles(values: Iterable[float | None]) -> Quantiles | None:
    """Return the usual quantiles of the values that are not missing; None without any."""
    ordered = sorted(value for value in values if value is not None)
    count = len(ordered)
    if not ordered:
        return None
    p50, p90, p99 = (ordered[rank(count, share)] for share in (0.5, 0.9, 0.99))
    return Quantiles(p50, p90, p99, math.fsum(ordered) / count, count)


def weighted_quantiles(values: NDArray[np.float64], weights: NDArray[np.float64]) -> Quantiles | None:
    """Return the quantiles of weighted values; None if all weights are 0."""
    total = float(weights.sum())
    if total == 0:
        return None
    order = np.argsort(values)
    ordered, reached = values[order], np.cumsum(weights[order])
    p50, p90, p99 = (
        float(ordered[min(len(ordered) - 1, int(np.searchsorted(reached, share * total - _ROUNDING)))])
        for share in (0.5, 0.9, 0.99)
    )
    return Quantiles(p50, p90, p99, float((values * weights).sum() / total), round(total))
