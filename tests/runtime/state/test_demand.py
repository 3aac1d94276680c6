"""Requests to several routers add up in Redis, slot by slot."""

from __future__ import annotations

import pytest
import redis.asyncio

from runtime.state import keys
from runtime.state.store import Store
from scheduling.scaling.demand import EMPTY, NUM_SLOTS, SLOT_S, Slot, came
from tests.runtime.state.given_clock import NOW_KEY, START_MS

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("on_the_tests_clock")]

SLOT_MS = round(SLOT_S * 1000)


def asked(prompt_tokens: int) -> Slot:
    return came(
        prompt_tokens=prompt_tokens,
        cached_tokens=0.5,
        num_seqs=2,
        output_tokens=3.25,
        slack_s=0.3,
        pace_s=None,
    )


async def test_two_routers_fill_the_same_slots(redis_url: str, on_the_tests_clock: None) -> None:
    one, other = await Store.connect(redis_url), await Store.connect(redis_url)
    async with redis.asyncio.Redis.from_url(redis_url) as admin:

        async def at(slot: int) -> None:
            # Redis's clock counts no silence of the fleet, so it passes in small steps.
            now = int(await admin.get(NOW_KEY) or START_MS)
            while now < START_MS + slot * SLOT_MS:
                now += 1000
                await admin.set(NOW_KEY, now)
                await one.queue_status()

        await admin.set(NOW_KEY, START_MS)
        await one.add_demand(asked(10))
        await other.add_demand(asked(30))
        assert await one.demand() == [], "the present slot is not over"
        await at(3)
        await one.add_demand(asked(7))
        await at(4)
        first, *rest = await other.demand()
        assert await one.demand() == [first, *rest]
        assert (first.prompts, first.prompt_tokens, first.sequences) == (2, 39, 4)
        assert rest == [EMPTY, EMPTY, asked(7)]
        assert 0 < await admin.pttl(keys.demand()) <= SLOT_MS * NUM_SLOTS
        await at(NUM_SLOTS + 3)
        assert await one.demand() == [], "a slot was kept for longer than the ring"
        await one.add_demand(asked(5))
        assert await admin.hlen(keys.demand()) <= 2, "a place of the ring was not used again"
    await one.close()
    await other.close()
