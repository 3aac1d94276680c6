"""How long a stream under fire may take."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.chaos.streams import TICK_S, within_ticks


async def test_what_takes_too_long_is_ended() -> None:
    over = asyncio.Event()

    async def for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            over.set()

    with pytest.raises(TimeoutError):
        await within_ticks(for_ever(), 1)
    assert over.is_set()


async def test_what_fails_says_why() -> None:
    async def fails() -> None:
        raise ValueError("this")

    with pytest.raises(ValueError, match="this"):
        await within_ticks(fails(), 1)


async def test_a_standstill_of_everything_costs_a_tick() -> None:
    async def work() -> None:
        await asyncio.sleep(0.5 * TICK_S)
        time.sleep(3 * TICK_S)
        await asyncio.sleep(0.5 * TICK_S)

    await within_ticks(work(), 2)
