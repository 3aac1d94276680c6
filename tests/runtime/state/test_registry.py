"""Living workers announce themselves, and are forgotten."""

from __future__ import annotations

import asyncio

from runtime.state.records import Leading, TierRecord, WorkerRecord
from runtime.state.store import Store
from scheduling.memory.tiers import Tier
from tests.patience import PATIENCE_S
from tests.runtime.state.common import worker


async def test_a_worker_is_listed_until_its_heartbeat_stops(store: Store) -> None:
    await store.register_worker(worker(), ttl_s=30)
    assert await store.list_workers() == [worker()]
    await store.register_worker(worker(), ttl_s=0.05)  # the last heartbeat
    async with asyncio.timeout(PATIENCE_S):
        while await store.list_workers():
            await asyncio.sleep(0.01)


async def test_a_replaced_worker_cannot_take_its_successor_away(store: Store) -> None:
    await store.register_worker(worker("old"), ttl_s=10)
    await store.register_worker(worker("new"), ttl_s=10)
    await store.unregister_worker("w1", "old")
    assert await store.list_workers() == [worker("new")]
    await store.unregister_worker("w1", "new")
    assert await store.list_workers() == []


async def test_a_worker_is_announced_with_its_disk(store: Store) -> None:
    record = WorkerRecord("d", "1", "decode", "h:1", "fp", "m", 16, 10, disk=TierRecord(5, 0.25, 0.5))
    await store.register_worker(record, 30)
    await store.publish_prefix(record.key, [b"x"], [], Tier.DISK)
    assert await store.list_workers() == [record]
    assert record.disk is not None
    assert record.disk.read_s(3) == 1.75
    await store.unregister_worker("d", "1")
    assert await store.lookup_prefix([record.key], [b"x"], {Tier.DISK: {record.key}}) == {
        record.key: Leading(0)
    }
