"""Time limits that are not held against Redis while the caller's own event loop stands still."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

STANDSTILL_S = 0.05
"""An alarm that goes off so much too late tells that the event loop stood still."""
MAX_EXCUSES = 3
"""Standstills in a row that are excused. A busy loop is always late, and by then has read what came."""


class Alarm:
    """Goes off at a time. After a standstill the event loop has `again_s` to read what came meanwhile."""

    def __init__(self, due_at: float, ring: Callable[[], object], again_s: float = STANDSTILL_S) -> None:
        self._again_s = again_s
        self._ring = ring
        self._excuses = MAX_EXCUSES
        self._set(due_at)

    def cancel(self) -> None:
        """Stay silent."""
        self._handle.cancel()

    def _set(self, due_at: float) -> None:
        self._handle = asyncio.get_running_loop().call_at(due_at, self._look, due_at)

    def _look(self, due_at: float) -> None:
        now = asyncio.get_running_loop().time()
        if now - due_at > STANDSTILL_S and self._excuses:
            self._excuses -= 1
            self._set(now + self._again_s)
        else:
            self._ring()


@contextlib.asynccontextmanager
async def time_limit(seconds: float) -> AsyncIterator[None]:
    """Raise `TimeoutError` if what is inside takes longer."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        alarm = Alarm(loop.time() + seconds, lambda: limit.reschedule(loop.time()))
        try:
            yield
        finally:
            alarm.cancel()
