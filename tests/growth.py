"""Whether a cost grows with the size of what it works on."""

from __future__ import annotations

import time
from collections.abc import Callable

SMALL, LARGE = 1_000, 100_000
MOST_GROWTH = 5
"""A cost that follows the size would grow a hundredfold; cache misses may make it grow a few times."""
LEAST_S = 50e-6
"""A cost below this is taken for this: the clock and the caches are all that it shows."""
TIMES = 7


def growth(prepare: Callable[[int], Callable[[], object]]) -> float:
    """Return how many times more processor time a call takes at `LARGE` than at `SMALL`.

    `prepare(size)` returns the call. The fastest of several calls counts, each prepared anew.
    """
    small_s, large_s = (
        max(LEAST_S, min(_taken_s(prepare, size) for _ in range(TIMES))) for size in (SMALL, LARGE)
    )
    return large_s / small_s


def _taken_s(prepare: Callable[[int], Callable[[], object]], size: int) -> float:
    call = prepare(size)
    # Preparing much pushes the code out of the caches, and then a call takes ten times longer whatever it
    # works on. This brings the code back, and none of what the measured call works on.
    prepare(SMALL)()
    began = time.thread_time()
    call()
    return time.thread_time() - began
