"""One router's stream: what waits to be written to it."""

from __future__ import annotations

import asyncio
from collections import deque

from engine.core.report import Failure, Load, StepReport

MAX_OUTBOUND = 1024
"""Reports that wait for the router to read them; one this far behind does not read."""


class RouterSession:
    """The hub puts reports in, the service takes them out. Bounded: a stalled router is let go."""

    def __init__(self, router_id: str) -> None:
        self.router_id = router_id
        self.overflowed = asyncio.Event()
        self.last_put_s = 0.0
        self._outbound: deque[StepReport] = deque()
        self._changed = asyncio.Event()
        self._closing = False

    @property
    def is_finished(self) -> bool:
        """Closed, and everything has been taken."""
        return self._closing and not self._outbound

    def put(self, report: StepReport, now_s: float) -> None:
        """A report whose handles are this router's."""
        self.last_put_s = now_s
        if len(self._outbound) >= MAX_OUTBOUND:
            self.overflowed.set()
            return
        self._outbound.append(report)
        self._changed.set()

    def fail(self, failure: Failure, load: Load, now_s: float) -> None:
        self.put(StepReport(load=load, failures=[failure]), now_s)

    def close(self) -> None:
        """Nothing more will be put."""
        self._closing = True
        self._changed.set()

    async def take(self, timeout_s: float) -> StepReport | None:
        """The next report; None when there is none for `timeout_s`, or will be none any more."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self._outbound and not self._closing:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return None
        return self._outbound.popleft() if self._outbound else None
