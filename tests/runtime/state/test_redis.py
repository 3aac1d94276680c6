"""Cases that only Redis can get wrong: refusals, absence, many callers."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
import redis.asyncio
from redis.exceptions import ConnectionError as RedisConnectionError

from runtime.state import keys
from runtime.state.connection import Connection
from runtime.state.errors import StoreEvicts, StoreUnavailable
from runtime.state.records import START_TTL_MS, Cancelled, DecodeRoom, Leading, PrefillRoom, StartingRecord
from runtime.state.store import PREFIX_LOOKUPS, Store
from tests.patience import PATIENCE_S
from tests.redis_server import redis_server
from tests.runtime.state.common import entry, subscribed


async def test_a_cancel_reaches_every_router_but_the_one_that_was_asked(store: Store) -> None:
    asked, other = [await subscribed(store, name) for name in ("r1", "r2")]
    await store.publish_cancel("r1", "shop", "one: two")
    await store.publish_cancel("r3", "", "three")
    assert [await asyncio.wait_for(anext(other), PATIENCE_S) for _ in range(2)] == [
        Cancelled("shop", "one: two"),
        Cancelled("", "three"),
    ]
    assert await asyncio.wait_for(anext(asked), PATIENCE_S) == Cancelled("", "three")
    await asked.aclose()
    await other.aclose()


async def test_leases_are_never_oversold_to_concurrent_routers(store: Store, redis_url: str) -> None:
    other = await Store.connect(redis_url)
    for i in range(40):
        await store.enqueue(entry(f"k{i}", router=f"r{i % 2 + 1}", due=i, tokens=1), 100)
    room = DecodeRoom("d:1", num_blocks=30, max_seqs=100)
    notices = {name: await subscribed(item, name) for name, item in (("r1", store), ("r2", other))}

    async def route(name: str, mine: Store) -> None:
        for _ in range(20):
            for item in await mine.grant(name, PrefillRoom("p:1", 1000), [room]):
                await mine.settle(item.request_key, "p:1", [room], ttl_s=30)

    await asyncio.gather(route("r1", store), route("r2", other))
    assert sum((await store.leases("d:1")).values()) <= 30
    for stream in notices.values():
        await stream.aclose()
    await other.close()


async def test_its_clock_is_read_unless_it_does_not_respond(store: Store, tmp_path: Path) -> None:
    before_s = time.time()
    read_s = await store.read_clock_s()
    assert read_s is not None
    assert before_s - 1 <= read_s <= time.time() + 1
    away = Store(Connection(f"unix://{tmp_path}/nothing.sock"))
    assert await away.read_clock_s() is None
    await away.close()


async def test_a_start_is_listed_with_its_silence_until_it_is_over(store: Store) -> None:
    old = StartingRecord("decode-0", "old", "decode", "reading weights", 3, 10)
    new = dataclasses.replace(old, incarnation="new", phase="measuring steps")
    await store.announce_start(old)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            [found] = await store.list_starting()
            assert found.record == old
            if found.silent_s > 0.05:
                break
    await store.announce_start(new)
    [found] = await store.list_starting()
    assert found.record == new
    assert found.silent_s < START_TTL_MS / 1000
    await store.withdraw_start(old)
    assert [item.record for item in await store.list_starting()] == [new]
    assert await store.list_workers() == []
    await store.withdraw_start(new)
    assert await store.list_starting() == []


async def test_a_router_that_takes_over_does_not_begin_empty(redis_url: str, store: Store) -> None:
    """A new router finds queue, leases, prompts under way and caches of the one before it."""
    gone, hashes = await Store.connect(redis_url), [bytes([i]) * 16 for i in range(3)]
    room = DecodeRoom("d:1", num_blocks=10, max_seqs=4)
    await gone.publish_prefix("d:1", hashes, [])
    for due, key in enumerate(("runs", "waits")):
        await gone.enqueue(entry(key, router="gone", due=due), 10)
    await gone.grant("gone", PrefillRoom("p:1", 1000, max_grants=1), [room])
    await gone.settle("runs", "p:1", [room], ttl_s=30)
    await gone.close()
    assert await store.lookup_prefix(["d:1"], hashes) == {"d:1": Leading(3)}
    assert (await store.leases("d:1"), await store.credits("p:1")) == ({"runs": 4}, {"runs": 50})
    place = await store.enqueue(entry("new", router="next", due=9000), 10)
    assert (place.position, place.work_ahead_tokens) == (1, 50)


async def test_of_processes_long_gone_nothing_stays_in_the_epoch(redis_url: str, store: Store) -> None:
    await store.enqueue(entry("new", router="r1~2"), 10)
    async with redis.asyncio.Redis.from_url(redis_url) as admin:
        await admin.hset(keys.epoch(), "called:r1~1", 1)
        started = await Store.connect(redis_url)
        await started.queue_status()
        await started.close()
        callers = [field for field in map(str, await admin.hkeys(keys.epoch())) if "called:" in field]
    assert len(callers) == 1
    assert "r1~2" in callers[0]


async def test_shares_hold_for_concurrent_routers(store: Store, redis_url: str) -> None:
    """None of the greedy tenant's requests slips past another router's charge."""
    other = await Store.connect(redis_url)
    await store.charge_tenant("modest", 0, band=100, lead=50)
    answers = await asyncio.gather(
        *((store, other)[i % 2].charge_tenant("greedy", 10, band=100, lead=50) for i in range(100))
    )
    assert sorted(answer.counter for answer in answers if not answer.is_over) == [10, 20, 30, 40, 50, 60]
    assert {answer.counter for answer in answers if answer.is_over} == {60}
    await other.close()


async def test_no_redis_is_said_in_time(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="does not answer"):
        await Store.connect(f"unix://{tmp_path}/nothing.sock", timeout_s=0.3)


async def test_a_name_that_does_not_resolve_is_said() -> None:
    url = "redis://redis.invalid:6379/0"
    with pytest.raises(StoreUnavailable, match="waited 3 s: its name does not resolve: "):
        await Store.connect(url, timeout_s=3.0)


async def test_a_server_that_refuses_is_as_good_as_away(store: Store, redis_url: str) -> None:
    async with redis.asyncio.Redis.from_url(redis_url) as admin:
        for key in (keys.entries(), keys.prefixes_of("d:1")):
            await admin.set(key, "of another type")
    with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
        await store.enqueue(entry("a"), 10)
    with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
        await store.publish_prefix("d:1", [b"x"], [])


async def test_a_burst_of_calls_waits_for_its_turn(store: Store) -> None:
    await asyncio.gather(*(store.enqueue(entry(f"r{i}"), 1000) for i in range(200)))
    assert (await store.queue_status()).waiting == 200


@pytest.mark.parametrize("num_workers", [1, 8, 500])
async def test_a_prompt_that_nobody_holds_costs_the_same_however_long_it_is(
    store: Store, num_workers: int
) -> None:
    workers = [f"d-{number}:1" for number in range(num_workers)]

    async def num_asked(num_blocks: int) -> int:
        left = iter([number.to_bytes(16) for number in range(num_blocks)])
        assert not any(found.cached for found in (await store.lookup_prefix(workers, left)).values())
        return num_blocks - len(list(left))

    assert await num_asked(1000) <= PREFIX_LOOKUPS
    assert await num_asked(100_000) == await num_asked(1000 if num_workers > 1 else PREFIX_LOOKUPS)


async def _hear(store: Store) -> None:
    async for _ in store.notices("r1"):
        pass


CALLS: dict[str, Callable[[Store], Coroutine[None, None, object]]] = {
    "script": lambda store: store.queue_status(),
    "pipeline": lambda store: store.lookup_prefix(["d:1"], [b"x"]),
    "notices": _hear,
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_cancellation_is_never_lost(store: Store, name: str) -> None:
    await store.queue_status()
    for turns in range(40):
        task = asyncio.create_task(CALLS[name](store))
        for _ in range(turns):
            await asyncio.sleep(0)
        if task.done():
            break
        task.cancel()
        await asyncio.wait((task,), timeout=PATIENCE_S)
        heeded = task.cancelled()
        while not task.done():
            task.cancel()
            await asyncio.wait((task,), timeout=0.1)
        assert heeded, f"cancelled after {turns} turns of the loop"


async def test_waiting_for_redis_ends_when_a_cancellation_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lose_it(_: object) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RedisConnectionError from None

    monkeypatch.setattr(redis.asyncio.Redis, "ping", lose_it)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(StoreUnavailable, match=r"waited 0\.1 s"):
            await Store.connect("redis://localhost:1/0", timeout_s=0.1)


async def test_a_redis_that_dies_while_it_is_asked_is_waited_for(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = redis.asyncio.Redis.info
    left = [RedisConnectionError("it died")]

    async def info(client: redis.asyncio.Redis, section: str) -> object:
        if left:
            raise left.pop()
        return await ask(client, section)

    monkeypatch.setattr(redis.asyncio.Redis, "info", info)
    await (await Store.connect(redis_url, PATIENCE_S)).close()
    assert not left


async def test_a_call_in_a_cancelled_task_s_cleanup_is_answered(store: Store) -> None:
    answers = []

    async def clean_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            answers.append(await store.queue_status())
            answers.append(await store.queue_status())

    task = asyncio.create_task(clean_up())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(answers) == 2


async def test_a_redis_that_may_evict_is_refused() -> None:
    with (
        redis_server("--maxmemory-policy", "allkeys-lru") as server,
        pytest.raises(StoreEvicts, match="maxmemory-policy is allkeys-lru; accepted: noeviction"),
    ):
        await Store.connect(server.url)
