"""Find the fewest workers that are enough, by as few judgements as possible."""

from __future__ import annotations

from collections.abc import Callable


def fewest(first: int, most: int, holds: Callable[[int], bool]) -> int | None:
    """Return the fewest workers from 1 to `most` that hold, or None if even `most` do not.

    The search begins at `first` and doubles its stride until it has passed the answer, so its cost grows with
    the logarithm of how far off `first` was. More workers are assumed to hold wherever fewer do.
    """
    size = min(max(1, first), most)
    if holds(size):
        high = size
        low = _last_failing(high, holds)
    else:
        low = size
        found = _first_holding(low, most, holds)
        if found is None:
            return None
        low, high = found
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


def _last_failing(high: int, holds: Callable[[int], bool]) -> int:
    """Return a number below `high` that fails, or 0; every number that is tried and holds is passed."""
    stride, size = 1, high - 1
    while size > 0 and holds(size):
        stride *= 2
        size -= stride
    return max(0, size)


def _first_holding(low: int, most: int, holds: Callable[[int], bool]) -> tuple[int, int] | None:
    """Return a failing and a larger holding number, or None if none up to `most` holds."""
    stride = 1
    while low < most:
        high = min(most, low + stride)
        if holds(high):
            return low, high
        low, stride = high, stride * 2
    return None
