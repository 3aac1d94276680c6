"""The reports that wait to be written to one router."""

from __future__ import annotations

import asyncio
from collections import deque

from engine.core.report import Failure, Load, StepReport

MAX_OUTBOUND = 1024
"""Reports that may wait for a router; one that is this far behind does not read."""


class RouterSession:
    """A queue of reports: the hub puts them in, the service takes them out. A stalled router is dropped."""

    def __init__(self, router_id: str) -> None:
        self.router_id = router_id
        self.overflowed = asyncio.Event()
        self.last_put_s = 0.0
        self._outbound: deque[StepReport] = deque()
        self._changed = asyncio.Event()
        self._closing = False

    @property
    def is_finished(self) -> bool:
        """True once it is closed and everything has been taken."""
        return self._closing and not self._outbound

    def put(self, report: StepReport, now_s: float) -> None:
        """Put a report whose handles are this router's."""
        self.last_put_s = now_s
        if len(self._outbound) >= MAX_OUTBOUND:
            self.overflowed.set()
            return
        self._outbound.append(report)
        self._changed.set()

    def fail(self, failure: Failure, load: Load, now_s: float) -> None:
        self.put(StepReport(load=load, failures=[failure]), now_s)

    def close(self) -> None:
        """Close the queue: nothing more will be put."""
        self._closing = True
        self._changed.set()

    async def take(self, timeout_s: float) -> StepReport | None:
        """Return the next report; None if none comes for `timeout_s`, or the queue is closed and empty."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self._outbound and not self._closing:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return None
        return self._outbound.popleft() if self._outbound else None
