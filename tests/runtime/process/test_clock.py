"""Machines whose clock is wrong say so."""

from __future__ import annotations

import asyncio
import time

import pytest
from structlog.testing import capture_logs

from runtime.process.clock import TOLERANCE_S, compare_clocks


async def compared(*aheads_s: float | None) -> list[float]:
    """Return the offsets that are measured where this machine's clock is ahead by each of these in turn.

    None stands for a Redis that does not respond.
    """
    measured: list[float] = []
    remaining, over = list(aheads_s), asyncio.Event()

    async def redis_s() -> float | None:
        if not remaining:
            over.set()
            await asyncio.Event().wait()
        ahead_s = remaining.pop(0)
        return None if ahead_s is None else time.time() - ahead_s

    comparing = asyncio.create_task(compare_clocks(redis_s, measured.append, interval_s=0.0))
    await over.wait()
    comparing.cancel()
    await asyncio.gather(comparing, return_exceptions=True)
    return measured


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
async def test_the_log_says_when_a_clock_becomes_wrong_and_right_again(ahead_s: float) -> None:
    with capture_logs() as logs:
        measured = await compared(0.0, ahead_s, None, ahead_s, 0.0, 0.0)
    assert measured == pytest.approx([0.0, ahead_s, ahead_s, 0.0, 0.0], abs=TOLERANCE_S / 2)
    said = [(entry["log_level"], entry["event"]) for entry in logs]
    assert said == [("warning", "clock_differs"), ("info", "clock_agrees")]
    assert logs[0]["ahead_of_redis_s"] == pytest.approx(ahead_s, abs=TOLERANCE_S / 2)
    assert logs[0]["accepted"] == "-10 to 10"


async def test_a_right_clock_is_not_mentioned() -> None:
    with capture_logs() as logs:
        await compared(None, 0.0, 0.0)
    assert not logs
