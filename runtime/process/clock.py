"""Compare this machine's clock with that of Redis, the only one that all processes of a fleet can ask.

What the fleet agrees on does not depend on the clocks of machines: Redis' clock counts, and deadlines travel
as remaining time. But a machine whose clock is wrong refuses certificates and access tokens that are valid.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Never

import structlog

INTERVAL_S = 60.0
TOLERANCE_S = 10.0
"""The default leeway for the times of access tokens. A slow answer of Redis takes less."""


async def compare_clocks(
    read_redis_s: Callable[[], Awaitable[float | None]],
    set_metric: Callable[[float], object],
    interval_s: float = INTERVAL_S,
) -> Never:
    """Set the metric to the offset every `interval_s`, and log when it becomes too large, until cancelled.

    `read_redis_s` returns the time of Redis in seconds since 1970, and None while Redis does not respond. The
    offset is how far this machine's clock is ahead.
    """
    log = structlog.get_logger()
    differs = False
    while True:
        before_s = time.time()
        redis_s = await read_redis_s()
        if redis_s is not None:
            offset_s = (before_s + time.time()) / 2 - redis_s
            set_metric(offset_s)
            if differs != (abs(offset_s) > TOLERANCE_S):
                differs = not differs
                accepted = f"{-TOLERANCE_S:g} to {TOLERANCE_S:g}"
                say = log.warning if differs else log.info
                event = "clock_differs" if differs else "clock_agrees"
                say(event, ahead_of_redis_s=round(offset_s, 1), accepted=accepted)
        await asyncio.sleep(interval_s)
