"""Redis's clock jumps, as when somebody sets it: nobody loses what is held, and nobody holds it for ever."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis.asyncio

from runtime.state.connection import QUIET_MS
from runtime.state.records import (
    ABANDONED_MS,
    GRANT_TTL_MS,
    MOST_FORGOTTEN,
    SILENT_MS,
    Grant,
    QueueStatus,
    Settled,
)
from runtime.state.store import Store
from tests.patience import PATIENCE_S
from tests.runtime.state.common import DECODE, PREFILL, ROOMY, entry, subscribed
from tests.runtime.state.given_clock import NOW_KEY, START_MS

HOUR_MS = 3_600_000
TTL_S = 10.0
HELD = [("living", DECODE.key), ("dead", DECODE.key)]


class JumpingClock:
    """Redis's, as the scripts read it. The fleet lives: each second somebody calls."""

    def __init__(self, url: str, store: Store) -> None:
        self._admin = redis.asyncio.Redis.from_url(url)
        self._store = store
        self._now_ms = START_MS

    async def jump(self, ms: int) -> None:
        self._now_ms += ms
        await self._admin.set(NOW_KEY, self._now_ms)

    async def live(self, seconds: int) -> None:
        """Pass the time, with one router that renews its lease."""
        for _ in range(seconds):
            await self.jump(1000)
            await self._store.renew([], HELD[:1], TTL_S)

    async def close(self) -> None:
        await self._admin.aclose()


@pytest.fixture
async def clock(on_the_tests_clock: None, redis_url: str, store: Store) -> AsyncIterator[JumpingClock]:
    clock = JumpingClock(redis_url, store)
    await clock.jump(0)
    yield clock
    await clock.close()


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS], ids=["forward", "backward"])
async def test_a_jump_never_oversells_nor_holds_for_ever(
    clock: JumpingClock, store: Store, jump_ms: int
) -> None:
    for name, _ in HELD:
        await store.enqueue(entry(name), 10)
        await store.grant("r1", PREFILL, [DECODE])
        settled = await store.settle(name, PREFILL.key, [DECODE], TTL_S)
        assert settled.outcome is Settled.OK
        await store.release_credit(name, PREFILL.key)
    held = await store.leases(DECODE.key)
    assert set(held) == {"living", "dead"}
    await clock.live(5)

    await clock.jump(jump_ms)
    assert await store.leases(DECODE.key) == held
    await store.enqueue(entry("next"), 10)
    assert await store.grant("r1", PREFILL, [DECODE]) == [], "both leases fill the worker"

    await clock.live(4)
    assert await store.leases(DECODE.key) == held
    await clock.live(7)
    assert set(await store.leases(DECODE.key)) == {"living"}, "nobody renewed the other"
    assert await store.grant("r1", PREFILL, [DECODE]) == [Grant("next", "r1", PREFILL.key, DECODE.key)]


async def test_a_clock_set_back_never_keeps_a_grant_that_nobody_settled(
    clock: JumpingClock, store: Store
) -> None:
    await store.enqueue(entry("lost"), 10)
    assert await store.grant("r1", PREFILL, [DECODE])
    await clock.jump(-HOUR_MS)
    assert (await store.queue_status()).waiting == 0
    await clock.jump(GRANT_TTL_MS)
    assert (await store.queue_status()).waiting == 1


async def test_what_is_held_outlives_a_server_that_stood_still(clock: JumpingClock, store: Store) -> None:
    await store.enqueue(entry("living"), 10)
    await store.grant("r1", PREFILL, [DECODE])
    await store.settle("living", PREFILL.key, [DECODE], TTL_S)
    await clock.jump(60_000)
    await clock.live(30)
    assert set(await store.leases(DECODE.key)) == {"living"}


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS], ids=["forward", "backward"])
async def test_a_peer_that_enters_after_a_jump_has_a_second_as_well(
    clock: JumpingClock, redis_url: str, store: Store, jump_ms: int
) -> None:
    """To enter what it holds, before anything is granted; nor does the fleet wait for longer."""
    peer = await Store.connect(redis_url, PATIENCE_S)
    await peer.list_workers()
    async with redis.asyncio.Redis.from_url(redis_url) as admin:
        await admin.flushall()
    await store.list_workers()
    for _ in range(QUIET_MS // 1000 + 1):
        await clock.jump(1000)
        await store.enqueue(entry("waiting"), 10)
    await clock.jump(jump_ms)
    await peer.list_workers()
    assert await store.grant("r1", PREFILL, [DECODE]) == []
    await clock.jump(QUIET_MS)
    assert [grant.request_key for grant in await store.grant("r1", PREFILL, [DECODE])] == ["waiting"]
    await peer.close()


async def test_a_router_that_stands_still_holds_nobody_up(clock: JumpingClock, store: Store) -> None:
    """It is still subscribed, as one that is stopped or behind a link that is half open."""
    notices = [await subscribed(store, name) for name in ("still", "slow", "r1")]
    await store.enqueue(entry("first", router="still", due=0), 10)
    await store.enqueue(entry("second", router="slow", due=1), 10)
    for _ in range(SILENT_MS // 1000 + 1):
        await clock.jump(1000)
        await store.enqueue(entry("second", router="slow", due=1), 10)
    await store.enqueue(entry("third", due=2), 10)
    assert [item.request_key for item in await store.grant("r1", PREFILL, [ROOMY])] == ["third"]
    assert await store.credits(PREFILL.key) == {"second": 50, "third": 50}
    assert (await store.queue_status()).waiting == 0, "its router asks again when it goes on"
    for stream in notices:
        await stream.aclose()


async def test_places_of_a_dead_router_are_forgotten_without_grants(
    clock: JumpingClock, store: Store
) -> None:
    """A fleet that has nothing else to do asks for no grants, and its status would tell of work for ever."""
    for number in range(MOST_FORGOTTEN + 1):
        await store.enqueue(entry(f"gone{number:03}", router="gone", due=number), 1000)
    for _ in range(ABANDONED_MS // 1000):
        await clock.jump(1000)
        assert (await store.queue_status()).waiting == MOST_FORGOTTEN + 1, "it may only stand still"
    await clock.jump(1000)
    assert await store.queue_status() == QueueStatus(1, 50), "no call takes long"
    place = await store.enqueue(entry("new", due=5000), 1000)
    assert (place.position, place.work_ahead_tokens) == (0, 0)


async def test_a_router_that_stood_still_for_long_gets_its_place_again(
    clock: JumpingClock, store: Store
) -> None:
    await store.enqueue(entry("first", router="still", due=0), 10)
    for _ in range(ABANDONED_MS // 1000 + 1):
        await clock.jump(1000)
        await store.enqueue(entry("second", due=20_000), 10)
    assert (await store.queue_status()).waiting == 1
    assert (await store.enqueue(entry("first", router="still", due=0), 10)).position == 0
    assert (await store.queue_status()).waiting == 2
