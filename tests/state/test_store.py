from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import redis.asyncio

from state import keys
from state.errors import QueueFull, StoreUnavailable
from state.records import (
    DecodeRoom,
    Grant,
    Granted,
    Notice,
    Nudge,
    PrefillRoom,
    QueueEntry,
    QueueStatus,
    Settled,
    WorkerRecord,
)
from state.store import Store

PREFILL = PrefillRoom("p:1", limit_tokens=100)
DECODE = DecodeRoom("d:1", num_blocks=10, max_seqs=4)


def entry(
    key: str, *, router: str = "r1", slo_class: int = 2, due: int = 1000, tokens: int = 50
) -> QueueEntry:
    return QueueEntry(key, router, slo_class, due, tokens, blocks=4)


def worker(incarnation: str = "a") -> WorkerRecord:
    return WorkerRecord("w1", incarnation, "decode", "127.0.0.1:1", "f", "demo", 16, 64)


async def test_a_worker_is_listed_until_its_heartbeat_stops(store: Store) -> None:
    await store.register_worker(worker(), ttl_s=0.05)
    assert await store.list_workers() == [worker()]
    async with asyncio.timeout(5):
        while await store.list_workers():
            await asyncio.sleep(0.01)


async def test_a_replaced_worker_cannot_take_its_successor_away(store: Store) -> None:
    await store.register_worker(worker("old"), ttl_s=10)
    await store.register_worker(worker("new"), ttl_s=10)
    await store.unregister_worker("w1", "old")
    assert await store.list_workers() == [worker("new")]
    await store.unregister_worker("w1", "new")
    assert await store.list_workers() == []


async def test_the_queue_orders_by_class_and_then_by_due_time(store: Store) -> None:
    await store.enqueue(entry("batch", slo_class=3, due=0), 10)
    await store.enqueue(entry("late", due=9000), 10)
    await store.enqueue(entry("early", due=1000), 10)
    place = await store.enqueue(entry("interactive", slo_class=1, due=90_000, tokens=7), 10)
    assert (place.position, place.work_ahead_tokens) == (0, 0)
    place = await store.enqueue(entry("last", slo_class=3, due=1), 10)
    assert (place.position, place.work_ahead_tokens) == (4, 157)
    granted = await store.grant("r1", PrefillRoom("p:1", 10_000), [DecodeRoom("d:1", 100, 100)])
    assert [one.request_key for one in granted] == ["interactive", "early", "late", "batch", "last"]


async def test_work_ahead_is_summed_over_long_queues(store: Store) -> None:
    for i in range(2100):
        await store.enqueue(entry(f"k{i}", due=i, tokens=2), 3000)
    place = await store.enqueue(entry("end", due=10_000), 3000)
    assert (place.position, place.work_ahead_tokens) == (2100, 4200)


async def test_enqueueing_twice_only_moves(store: Store) -> None:
    await store.enqueue(entry("a"), 1)
    await store.enqueue(entry("a", due=5), 1)
    assert await store.queue_status() == QueueStatus(1, 50)
    with pytest.raises(QueueFull, match="1 requests are waiting"):
        await store.enqueue(entry("b"), 1)


async def test_grants_stop_at_the_worker_s_limit(store: Store) -> None:
    for key in "abc":
        await store.enqueue(entry(key), 10)
    assert len(await store.grant("r1", PREFILL, [DECODE])) == 2
    assert await store.grant("r1", PREFILL, [DECODE]) == []
    assert await store.release_credit("a", "p:1")
    assert [one.request_key for one in await store.grant("r1", PREFILL, [DecodeRoom("d:1", 100, 9)])] == ["c"]


async def test_a_head_that_fits_nowhere_waits_and_is_not_passed(store: Store) -> None:
    await store.enqueue(QueueEntry("large", "r1", 2, 0, 10, blocks=11), 10)
    await store.enqueue(entry("small", due=5000), 10)
    assert await store.grant("r1", PREFILL, [DECODE]) == []
    assert [
        one.request_key for one in await store.grant("r1", PREFILL, [DECODE, DecodeRoom("d:2", 11, 1)])
    ] == [
        "large",
        "small",
    ]


async def test_settling_leases_the_blocks_and_keeps_the_credit(store: Store) -> None:
    await store.enqueue(entry("a"), 10)
    await store.grant("r1", PREFILL, [DECODE])
    assert await store.settle("a", "p:1", DECODE, ttl_s=30) is Settled.OK
    assert await store.leases("d:1") == {"a": 4}
    assert await store.credits("p:1") == {"a": 50}
    assert await store.queue_status() == QueueStatus(0, 0)


async def test_settling_twice_changes_nothing(store: Store) -> None:
    await store.enqueue(entry("a"), 10)
    await store.grant("r1", PREFILL, [DECODE])
    await store.settle("a", "p:1", DECODE, ttl_s=30)
    assert await store.settle("a", "p:1", DECODE, ttl_s=30) is Settled.EXPIRED
    assert await store.leases("d:1") == {"a": 4}
    assert await store.credits("p:1") == {"a": 50}


async def test_a_grant_without_room_goes_back_to_its_place(store: Store) -> None:
    await store.enqueue(entry("a", due=1), 10)
    await store.enqueue(entry("b", due=2), 10)
    await store.grant("r1", PrefillRoom("p:1", 10), [DECODE])
    full = DecodeRoom("d:2", num_blocks=3, max_seqs=4)
    assert await store.settle("a", "p:1", full, ttl_s=30) is Settled.NO_ROOM
    assert await store.credits("p:1") == {}
    assert [one.request_key for one in await store.grant("r1", PrefillRoom("p:1", 10), [DECODE])] == ["a"]


async def test_a_grant_not_settled_in_time_is_lost_with_its_credit(store: Store) -> None:
    await store.enqueue(entry("stalled"), 10)
    await store.enqueue(entry("next", due=9000), 10)
    assert len(await store.grant("r1", PrefillRoom("p:1", 10), [DECODE])) == 1
    async with asyncio.timeout(5):
        while not (granted := await store.grant("r1", PrefillRoom("p:1", 10), [DECODE])):
            await asyncio.sleep(0.01)
    assert [one.request_key for one in granted] == ["next"]
    assert await store.settle("stalled", "p:1", DECODE, ttl_s=30) is Settled.EXPIRED
    assert await store.leases("d:1") == {}


async def test_a_dequeued_request_is_never_granted(store: Store) -> None:
    await store.enqueue(entry("a"), 10)
    assert await store.dequeue("a")
    assert not await store.dequeue("a")
    assert await store.grant("r1", PREFILL, [DECODE]) == []


async def test_leases_are_never_oversold_to_concurrent_routers(store: Store, redis_url: str) -> None:
    other = await Store.connect(redis_url)
    for i in range(40):
        await store.enqueue(entry(f"k{i}", router=f"r{i % 2 + 1}", due=i, tokens=1), 100)
    room = DecodeRoom("d:1", num_blocks=30, max_seqs=100)
    notices = {name: await _subscribed(one, name) for name, one in (("r1", store), ("r2", other))}

    async def route(name: str, mine: Store) -> None:
        for _ in range(20):
            for one in await mine.grant(name, PrefillRoom("p:1", 1000), [room]):
                await mine.settle(one.request_key, "p:1", room, ttl_s=30)

    await asyncio.gather(route("r1", store), route("r2", other))
    assert sum((await store.leases("d:1")).values()) <= 30
    for stream in notices.values():
        await stream.aclose()
    await other.close()


async def test_a_lease_is_released_once_and_everybody_hears_of_it(store: Store) -> None:
    await store.enqueue(entry("a"), 10)
    await store.grant("r1", PREFILL, [DECODE])
    await store.settle("a", "p:1", DECODE, ttl_s=30)
    heard = await _subscribed(store, "r9")
    assert await store.release_lease("a", "d:1")
    assert not await store.release_lease("a", "d:1")
    assert await asyncio.wait_for(anext(heard), 5) == Nudge()
    await heard.aclose()


async def test_a_grant_of_another_router_s_session_reaches_it_as_a_notice(store: Store) -> None:
    heard = await _subscribed(store, "r2")
    await store.enqueue(entry("a", router="r2"), 10)
    assert await store.grant("r1", PREFILL, [DECODE]) == []
    assert await asyncio.wait_for(anext(heard), 5) == Granted(Grant("a", "r2", "p:1"))
    await heard.aclose()


async def test_what_is_renewed_does_not_expire(store: Store) -> None:
    await store.enqueue(entry("kept", tokens=1), 10)
    await store.enqueue(entry("lost", tokens=1), 10)
    await store.grant("r1", PREFILL, [DECODE])
    for key in ("kept", "lost"):
        assert await store.settle(key, "p:1", DECODE, ttl_s=0.1) is Settled.OK
    await store.renew([("kept", "p:1")], [("kept", "d:1")], ttl_s=30)
    async with asyncio.timeout(5):
        while "lost" in await store.leases("d:1"):
            await store.grant("r1", PREFILL, [DECODE])
            await asyncio.sleep(0.01)
    assert await store.leases("d:1") == {"kept": 4}
    assert await store.credits("p:1") == {"kept": 1}


async def test_the_prefix_directory_counts_leading_blocks(store: Store) -> None:
    hashes = [bytes([i]) * 16 for i in range(4)]
    await store.publish_prefix("a:1", hashes, [])
    await store.publish_prefix("b:1", [hashes[0], hashes[2]], [])
    assert await store.lookup_prefix(["a:1", "b:1", "c:1"], hashes) == {"a:1": 4, "b:1": 1, "c:1": 0}
    await store.publish_prefix("a:1", [], [hashes[1]])
    assert await store.lookup_prefix(["a:1"], hashes) == {"a:1": 1}


async def test_no_redis_is_said_in_time(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="does not answer"):
        await Store.connect(f"unix://{tmp_path}/nothing.sock", timeout_s=0.3)


async def _subscribed(store: Store, router_id: str) -> AsyncGenerator[Notice, None]:
    stream = store.notices(router_id)
    assert await anext(stream) == Nudge()
    return stream


async def test_a_server_that_refuses_is_as_good_as_away(store: Store, redis_url: str) -> None:
    async with redis.asyncio.Redis.from_url(redis_url) as admin:
        for key in (keys.queue(), keys.prefixes_of("d:1")):
            await admin.set(key, "of another type")
    with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
        await store.enqueue(entry("a"), 10)
    with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
        await store.publish_prefix("d:1", [b"x"], [])


async def test_a_burst_of_calls_waits_for_its_turn(store: Store) -> None:
    places = await asyncio.gather(*(store.enqueue(entry(f"r{i}"), 1000) for i in range(500)))
    assert max(place.position for place in places) == 499
