"""Virtual time: calls are scheduled, and made in order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    """A clock in seconds from 0. Calls due at the same time are made in the order in which they were
    scheduled.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._calls: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._asked = 0

    def at(self, time: float, call: Callable[..., None], *args: Any) -> None:
        """Schedule a call at `time`, which is not past."""
        self._asked += 1
        heapq.heappush(self._calls, (time, self._asked, call, args))

    def run(self, until: float) -> None:
        """Make every call that is due by `until`, including those scheduled meanwhile."""
        calls, pop = self._calls, heapq.heappop
        while calls and calls[0][0] <= until:
            self.now, _, call, args = pop(calls)
            call(*args)

    @property
    def num_calls(self) -> int:
        """The calls scheduled so far, which is what a simulation costs."""
        return self._asked
