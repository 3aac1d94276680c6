"""Virtual time: calls that are due, carried out in order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    """Seconds from 0. Calls due at the same time are made in the order they were asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._calls: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._asked = 0

    def at(self, time: float, call: Callable[..., None], *args: Any) -> None:
        """Call when it is `time`, which is not past."""
        self._asked += 1
        heapq.heappush(self._calls, (time, self._asked, call, args))

    def run(self, until: float) -> None:
        """Make every call that is due by `until`, or by what those ask for."""
        calls, pop = self._calls, heapq.heappop
        while calls and calls[0][0] <= until:
            self.now, _, call, args = pop(calls)
            call(*args)

    @property
    def num_calls(self) -> int:
        """Made or asked for so far: what a simulation costs."""
        return self._asked
