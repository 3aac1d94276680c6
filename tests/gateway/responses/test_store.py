"""Stored responses in a real Redis: whose they are, how long they stay, and how much there may be."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from gateway.responses.keeping import Keeping
from gateway.responses.store import Record, ResponseLimits, ResponseStore
from runtime.state import keys
from runtime.state.durable import DurableRedis
from runtime.state.errors import StoreUnavailable
from tests.fleet.driving import until
from tests.redis_server import redis_server
from tests.runtime.state.patient import wait_patiently

pytestmark = pytest.mark.integration


@pytest.fixture
async def opened(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DurableRedis]:
    wait_patiently(monkeypatch)
    with redis_server() as server:
        connection = DurableRedis(server.url)

        async def ready() -> bool:
            with contextlib.suppress(StoreUnavailable), connection.client() as client:
                return bool(await client.ping())
            return False

        await until(ready, "Redis responds")
        yield connection
        await connection.close()


def record(name: str, num_bytes: int = 0) -> Record:
    """A record that takes about this many bytes, compressed."""
    filling = "".join(random.Random(name).choices("0123456789abcdef", k=2 * num_bytes))
    response = {"id": name, "status": "completed", "output": [], "filling": filling}
    return Record(response, [], [], name, "d", holder="0" * 32)


async def held(opened: DurableRedis) -> int:
    """The bytes that the store counts, once they are found to be what is there."""
    with opened.client() as client:
        total = int(await client.get(keys.durable("responses_total")) or 0)
        lengths = 0
        for key in await client.keys(keys.durable("responses_content", "*")):
            lengths += sum(map(len, await client.hvals(key)))
        tenants: Any = await client.zrange(keys.durable("responses_bytes"), 0, -1, withscores=True)
    assert total == lengths == sum(score for _, score in tenants)
    return total


async def test_a_response_belongs_to_its_tenant(opened: DurableRedis) -> None:
    store = ResponseStore(opened, ResponseLimits(60, 1000, 10_000))
    kept = record("resp_1")
    assert await store.keep("acme", kept)
    assert await store.find("acme", "resp_1") == kept
    for other in ("", "acme:resp_1", "other"):
        assert await store.find(other, "resp_1") is None
        assert not await store.drop(other, "resp_1")
    assert await store.drop("acme", "resp_1")
    assert await store.find("acme", "resp_1") is None
    assert await held(opened) == 0


async def test_a_later_one_takes_the_place_of_an_earlier_one(opened: DurableRedis) -> None:
    store = ResponseStore(opened, ResponseLimits(60, 1000, 10_000))
    for size in (500, 10, 300):
        assert await store.keep("acme", record("resp_1", size))
        assert size <= await held(opened) <= size + 300


def keeping(store: ResponseStore) -> Keeping:
    """The place of a response that one more sending of the same request makes."""
    record = Record({"id": "resp_1", "status": "in_progress", "output": []}, [], [], "key", "d")
    return Keeping(store, "acme", record, is_demanded=True)


def ended(place: Keeping, status: str = "completed") -> dict[str, Any]:
    return {**place.record.response, "status": status}


async def test_a_stale_holder_changes_nothing(opened: DurableRedis) -> None:
    store = ResponseStore(opened, ResponseLimits(60, 1000, 10_000))
    stale, later = keeping(store), keeping(store)
    await stale.begin()
    await later.begin()
    for expected in (later.record, replace(later.record, response=ended(later) | {"store": True})):
        stale._leased_at = -1000.0
        await stale.renew()
        await stale.end(failed := ended(stale, "failed"))
        assert failed["store"] is False
        await stale.abandon()
        assert await store.find("acme", "resp_1") == expected
        await later.end(response := ended(later))
        assert response["store"] is True
    # One that began before the end, and comes to the same end.
    last = keeping(store)
    await last.begin()
    await last.end(response := ended(last))
    await last.abandon()
    assert response["store"] is True
    assert await store.find("acme", "resp_1") == expected
    await held(opened)


async def test_who_ends_first_keeps_the_response(opened: DurableRedis) -> None:
    store = ResponseStore(opened, ResponseLimits(60, 1000, 10_000))
    first, later = keeping(store), keeping(store)
    await first.begin()
    await later.begin()
    await first.end(ended(first))
    await later.abandon()
    assert await store.find("acme", "resp_1") == first.record


async def test_one_that_failed_gives_its_place_to_the_next(opened: DurableRedis) -> None:
    store = ResponseStore(opened, ResponseLimits(60, 1000, 10_000))
    failed, later = keeping(store), keeping(store)
    await failed.begin()
    await failed.end(ended(failed, "failed"))
    await later.begin()
    assert await store.find("acme", "resp_1") == later.record
    await later.abandon()
    assert await store.find("acme", "resp_1") is None
    assert await held(opened) == 0


async def test_a_large_one_is_not_kept(opened: DurableRedis) -> None:
    store = ResponseStore(opened, ResponseLimits(60, 1000, 10_000))
    assert not await store.keep("acme", record("resp_1", 2000))
    assert await held(opened) == 0


async def test_one_that_only_compresses_well_is_not_kept(opened: DurableRedis) -> None:
    store = ResponseStore(opened, ResponseLimits(60, 1000, 10_000))
    for num_bytes, is_kept in ((7000, True), (8000, False)):
        long = replace(record(f"resp_{num_bytes}"), input=[{"content": "a" * num_bytes}])
        assert await store.keep("acme", long) is is_kept


async def test_over_the_limit_the_largest_tenant_loses_its_oldest(opened: DurableRedis) -> None:
    store = ResponseStore(opened, ResponseLimits(60, 1500, 5000))
    assert await store.keep("small", record("resp_small", 400))
    for index in range(12):
        assert await store.keep("big", record(f"resp_{index}", 800))
        assert await held(opened) <= 5000
    assert await store.find("small", "resp_small") is not None
    assert await store.find("big", "resp_0") is None
    assert await store.find("big", "resp_11") is not None


async def test_time_ends_everything_and_is_counted(opened: DurableRedis) -> None:
    store = ResponseStore(opened, ResponseLimits(60, 1000, 10_000))
    await store.keep("acme", record("resp_old", 500), ttl_s=0.05)
    await store.keep("acme", record("resp_new", 500))
    await store.keep("gone", record("resp_gone", 500), ttl_s=0.05)

    async def over() -> bool:
        return await store.find("acme", "resp_old") is None and await store.find("gone", "resp_gone") is None

    await until(over, "the short-lived are over")
    await store.keep("acme", record("resp_newest", 100))
    assert 600 <= await held(opened) <= 1200
    assert await store.find("acme", "resp_new") is not None
    with opened.client() as client:
        for key in set(await client.keys("*")) - {keys.durable_clock().encode()}:
            assert await client.pttl(key) > 0, key


async def test_many_at_once_count_right(opened: DurableRedis) -> None:
    store, drawn = ResponseStore(opened, ResponseLimits(60, 1000, 8000)), random.Random(1)

    async def use(tenant: str) -> None:
        for _ in range(40):
            name = f"resp_{drawn.randrange(10)}"
            if drawn.random() < 0.7:
                await store.keep(tenant, record(name, drawn.randrange(900)))
            else:
                await store.drop(tenant, name)

    await asyncio.gather(*(use(tenant) for tenant in ("a", "b", "c", "a")))
    assert await held(opened) <= 8000
