"""How long it takes to load an adapter, by its size: as fast as the slowest of the last ones."""

from __future__ import annotations

from collections import deque

FIXED_S = 0.01
"""Added for a load of any size: the time from the step that asks for it to the one that goes on."""
NUM_REMEMBERED = 8


class LoadTimes:
    """Observes loads, on any thread."""

    def __init__(self) -> None:
        self._byte_s: deque[float] = deque(maxlen=NUM_REMEMBERED)

    def observe(self, num_bytes: int, seconds: float) -> None:
        """Note that a load of so many bytes took so long."""
        if num_bytes:
            self._byte_s.append(max(0.0, seconds - FIXED_S) / num_bytes)

    def expect_s(self, num_bytes: int) -> float:
        """Return how long a load of so many bytes is expected to take, with two significant digits.

        A promise that counts it is kept by all but the slowest loads. What others are told does not change
        with each digit.
        """
        return float(f"{FIXED_S + num_bytes * max(self._byte_s, default=0.0):.2g}")
