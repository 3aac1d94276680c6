"""Virtual time. Calls are made one at a time, in the order of their times; equal times keep their order."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any

Call = Callable[..., object]


class Scheduler:
    """True time in seconds from 0, which no process sees: each has a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num_calls = 0
        self._later: list[tuple[float, int, Call, tuple[Any, ...]]] = []
        self._soon: deque[tuple[Call, tuple[Any, ...]]] = deque()
        self._asked = 0

    def at(self, time: float, call: Call, *args: Any) -> None:
        """Make a call at `time`, or now if that is past."""
        self._asked += 1
        heapq.heappush(self._later, (max(time, self.now), self._asked, call, args))

    def after(self, seconds: float, call: Call, *args: Any) -> None:
        self.at(self.now + seconds, call, *args)

    def soon(self, call: Call, *args: Any) -> None:
        """Make a call at this time, after those that were asked for before."""
        self._soon.append((call, args))

    def run(self, until: float, check: Callable[[], bool]) -> None:
        """Make calls until `until`, or until `check` returns True, which is asked after each call."""
        soon, later = self._soon, self._later
        while True:
            if soon:
                call, args = soon.popleft()
            elif later and later[0][0] <= until:
                self.now, _, call, args = heapq.heappop(later)
            else:
                self.now = max(self.now, until)
                return
            self.num_calls += 1
            call(*args)
            if check():
                return
