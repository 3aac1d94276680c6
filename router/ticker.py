"""The router's pulse: how late its event loop runs, which a crowded machine or too many requests make it.

A router whose loop lags serves everybody late: its calls of Redis time out, its workers seem silent, and each
newcomer makes it worse. So it refuses newcomers until it has caught up. Who goes on with a stream is served:
refused, it would come back at once, with more to compute.
"""

from __future__ import annotations

import asyncio
import time

from router.errors import Overloaded

TICK_S = 0.1
SMOOTH_S = 1.0
"""The lag is a mean over about this long: a hiccup shorter than the bound refuses nobody."""
BUSY_LAG_S = 0.5
MOST_LAG_S = 1.0
"""Counted of one tick: after a standstill, however long, it takes less than a second to be trusted again."""
RETRY_S = 1.0


class Ticker:
    """Counts ticks of the loop it runs on."""

    def __init__(self) -> None:
        self.lag_s = 0.0
        """By how much ticks are late, smoothed."""

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            asked_at = time.monotonic()
            await asyncio.sleep(TICK_S)
            self.take(time.monotonic() - asked_at - TICK_S)

    def take(self, late_s: float) -> None:
        """A tick came, so late."""
        weight = min(1.0, (TICK_S + late_s) / SMOOTH_S)
        self.lag_s += weight * (min(late_s, MOST_LAG_S) - self.lag_s)

    def refuse_if_busy(self) -> None:
        """For a newcomer, before anything is spent on it. Raises `Overloaded`."""
        if self.lag_s > BUSY_LAG_S:
            raise Overloaded(f"this router is busy: it runs {self.lag_s:.1f} s late", RETRY_S)
