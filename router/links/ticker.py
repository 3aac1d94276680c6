"""The router's pulse: how late its event loop runs, and a count of ticks that stops while the loop does.

If a crowded machine or too many requests make the loop lag, every request is served late: calls to Redis time
out, and each new request makes it worse. The router then refuses new requests until it has caught up. It
still serves resumed streams: refused, they would come back at once, with more to compute.

A router whose loop stands still does not read either. The silence of others is therefore counted in ticks, in
which a long standstill is one, and arrived messages are read before anyone is judged.
"""

from __future__ import annotations

import asyncio
import time

from router.errors import Overloaded, Reason

TICK_S = 0.1
LATE_S = 0.05
READ_S = 0.02
"""After a tick that is later than `LATE_S`, arrived messages are read for this long."""
SMOOTH_S = 3.0
"""The lag is a mean over about this long, so that a single late tick does not refuse requests."""
BUSY_LAG_S = 0.5
MAX_COUNTED_LAG_S = 1.0
"""The most that one tick counts: a single long standstill is no sign of too many requests."""
RETRY_S = 1.0


class Ticker:
    """Counts ticks of the loop it runs on."""

    def __init__(self) -> None:
        self.num_ticks = 0
        self.lag_s = 0.0
        """The smoothed lateness of ticks."""
        self._ticked = asyncio.Event()

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            started_at = time.monotonic()
            await asyncio.sleep(TICK_S)
            late_s = time.monotonic() - started_at - TICK_S
            if late_s > LATE_S:
                await asyncio.sleep(READ_S)
            self.record(late_s)

    async def next(self) -> int:
        """Wait for the next tick; return its number."""
        await self._ticked.wait()
        return self.num_ticks

    def record(self, late_s: float) -> None:
        """Count a tick that came this late."""
        self.num_ticks += 1
        counted_s = min(late_s, MAX_COUNTED_LAG_S)
        self.lag_s += (TICK_S + counted_s) / SMOOTH_S * (counted_s - self.lag_s)
        waited_for, self._ticked = self._ticked, asyncio.Event()
        waited_for.set()

    def refuse_if_busy(self) -> None:
        """Refuse a new request while the router lags. Raises `Overloaded`."""
        if self.lag_s > BUSY_LAG_S:
            raise Overloaded(
                Reason.ROUTER_BUSY, f"this router is busy: it runs {self.lag_s:.1f} s late", RETRY_S
            )
