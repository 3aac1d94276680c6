"""The router's pulse: how late its event loop runs, and a count that stands still while the loop does.

A router whose loop lags, as a crowded machine or too many requests make it, serves everybody late: its calls
of Redis time out, and each newcomer makes it worse. So it refuses newcomers until it has caught up. Who goes
on with a stream is served: refused, it would come back at once, with more to compute.

Nor has it listened meanwhile. What others fail to do is counted in ticks, a late one is no more than one,
and what has come is read before anybody is judged by it.
"""

from __future__ import annotations

import asyncio
import time

from router.errors import Overloaded, Reason

TICK_S = 0.1
LATE_S = 0.05
READ_S = 0.02
"""After a tick that is later than that, what waits to be read has this long."""
SMOOTH_S = 3.0
"""The lag is a mean over about this long: only a loop that is late again and again refuses anybody."""
BUSY_LAG_S = 0.5
MOST_LAG_S = 1.0
"""Counted of one tick: a single standstill, however long, is no sign of too many requests."""
RETRY_S = 1.0


class Ticker:
    """Counts ticks of the loop it runs on."""

    def __init__(self) -> None:
        self.num_ticks = 0
        self.lag_s = 0.0
        """By how much ticks are late, smoothed."""
        self._ticked = asyncio.Event()

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            asked_at = time.monotonic()
            await asyncio.sleep(TICK_S)
            late_s = time.monotonic() - asked_at - TICK_S
            if late_s > LATE_S:
                await asyncio.sleep(READ_S)
            self.take(late_s)

    async def next(self) -> int:
        """Wait for the next tick; its number."""
        await self._ticked.wait()
        return self.num_ticks

    def take(self, late_s: float) -> None:
        """A tick came, so late."""
        self.num_ticks += 1
        counted_s = min(late_s, MOST_LAG_S)
        self.lag_s += (TICK_S + counted_s) / SMOOTH_S * (counted_s - self.lag_s)
        waited_for, self._ticked = self._ticked, asyncio.Event()
        waited_for.set()

    def refuse_if_busy(self) -> None:
        """For a newcomer, before anything is spent on it. Raises `Overloaded`."""
        if self.lag_s > BUSY_LAG_S:
            raise Overloaded(
                Reason.ROUTER_BUSY, f"this router is busy: it runs {self.lag_s:.1f} s late", RETRY_S
            )
