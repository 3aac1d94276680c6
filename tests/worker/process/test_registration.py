"""The fleet learns of a worker through Redis."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence

import pytest
import redis.asyncio

from runtime.state.records import Leading, LinkRecord, LoraRecord, TierRecord, WorkerRecord
from runtime.state.store import Store
from scheduling.memory.tiers import Tier
from tests.patience import PATIENCE_S
from tests.runtime.state.patient import wait_patiently
from worker.errors import ForeignFleetError
from worker.metrics import WorkerMetrics
from worker.process import registration
from worker.process.prefix_changes import PrefixChanges
from worker.process.registration import AnnouncedTier, Registration

OWN = WorkerRecord("decode-1", "inc", "decode", "h:1", "fp", "model", 16, 100)


def _hashes(first: int, end: int) -> list[bytes]:
    return [number.to_bytes(16) for number in range(first, end)]


async def test_an_emptied_redis_is_told_of_a_large_pool_in_pieces(
    store: Store, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    publish = store.publish_prefix

    async def publish_counted(
        worker_key: str, added: Sequence[bytes], removed: Sequence[bytes], tier: Tier
    ) -> None:
        told.append(len(added) + len(removed))
        await publish(worker_key, added, removed, tier)

    registered = Registration(store, OWN, WorkerMetrics())
    await registered.start()
    held = _hashes(0, 25_000)
    registered.prefixes.note(held, [])
    await _until_known(store, held)
    # Before the flush: the worker may notice it at once.
    monkeypatch.setattr(store, "publish_prefix", publish_counted)
    async with redis.asyncio.Redis.from_url(redis_url + "?db=7") as admin:
        await admin.flushdb()
    await _until_known(store, held)
    await registered.stop()
    assert max(told) <= registration.PIECE
    assert sum(told) == len(held), "told twice"


async def test_the_speed_of_links_is_announced_as_it_is_now(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "RENEW_S", 0.01)
    speeds = [LinkRecord(0.25, 0.5)]
    registered = Registration(store, OWN, WorkerMetrics(), describe_links=lambda: speeds[-1])
    await registered.start()
    assert [record.link for record in await store.list_workers()] == speeds
    speeds.append(LinkRecord(0.25, 0.5, {"inc-2": (1.0, 2.0)}))
    async with asyncio.timeout(PATIENCE_S):
        while (await store.list_workers())[0].link == speeds[0]:
            await asyncio.sleep(0.01)
    (record,) = await store.list_workers()
    await registered.stop()
    assert record.link is not None
    assert record.link.speed_of("inc-2") == (1.0, 2.0)
    assert record.link.speed_of("inc-3") == (0.25, 0.5)


async def test_adapters_that_change_are_announced_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "RENEW_S", PATIENCE_S)
    monkeypatch.setattr(registration, "TTL_S", 2 * PATIENCE_S)
    records = [LoraRecord({"red": "1" * 32}, {"1" * 32: 0.5}, (), {"blue": "r is 99; accepted: 1 to 16"})]
    registered = Registration(store, OWN, WorkerMetrics(), describe_lora=lambda: records[-1])
    await registered.start()
    assert [record.lora for record in await store.list_workers()] == records
    records.append(LoraRecord({"red": "1" * 32}, {}, ("1" * 32,)))
    registered.announce_soon()
    async with asyncio.timeout(PATIENCE_S):
        while [record.lora for record in await store.list_workers()] != records[1:]:
            await asyncio.sleep(0.01)
    await registered.stop()


async def test_what_a_disk_has_is_announced_before_the_worker_is_ready(store: Store) -> None:
    disk = AnnouncedTier(PrefixChanges(), lambda: TierRecord(2, 0.002, 0.001))
    disk.changes.note([b"a" * 16, b"b" * 16], [])
    registered = Registration(store, OWN, WorkerMetrics(), {Tier.DISK: disk})
    await registered.start()
    found = await store.lookup_prefix([OWN.key], [b"a" * 16, b"b" * 16], {Tier.DISK: {OWN.key}})
    assert found == {OWN.key: Leading(0, 2)}
    assert [record.disk for record in await store.list_workers()] == [TierRecord(2, 0.002, 0.001)]
    disk.changes.note([], [b"a" * 16])
    while (await store.lookup_prefix([OWN.key], [b"a" * 16], {Tier.DISK: {OWN.key}}))[OWN.key].on_disk:
        await asyncio.sleep(0.01)
    await registered.stop()


async def test_large_tiers_are_announced_in_pieces_the_fastest_first(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, Tier]] = []
    publish = store.publish_prefix

    async def publish_counted(
        worker_key: str, added: Sequence[bytes], removed: Sequence[bytes], tier: Tier
    ) -> None:
        told.append((len(added), tier))
        await publish(worker_key, added, removed, tier)

    monkeypatch.setattr(store, "publish_prefix", publish_counted)
    disk = AnnouncedTier(PrefixChanges(), lambda: TierRecord(30_000, 0.002, 0.001))
    disk.changes.note(_hashes(0, 30_000), [])
    host = AnnouncedTier(PrefixChanges(), lambda: TierRecord(7_000, 0.001, 0.0001))
    host.changes.note(_hashes(0, 7_000), [])
    registered = Registration(store, OWN, WorkerMetrics(), {Tier.HOST: host, Tier.DISK: disk})
    registered.prefixes.note(_hashes(0, 5_000), [])
    await registered.start()
    assert [tier for _, tier in told] == [Tier.POOL] * 5 + [Tier.HOST] * 7 + [Tier.DISK] * 8
    assert {num for num, _ in told} == {registration.PIECE}
    assert [record.host for record in await store.list_workers()] == [TierRecord(7_000, 0.001, 0.0001)]
    held, tiers = _hashes(0, 30_000), {Tier.HOST: {OWN.key}, Tier.DISK: {OWN.key}}
    while (await store.lookup_prefix([OWN.key], held, tiers))[OWN.key] != Leading(5_000, 23_000, 2_000):
        await asyncio.sleep(0.01)
    assert sum(num for num, tier in told if tier is Tier.DISK) == 30_000
    await registered.stop()


async def _until_known(store: Store, held: list[bytes]) -> None:
    while (await store.lookup_prefix([OWN.key], held))[OWN.key].cached < len(held):
        await asyncio.sleep(0.01)


@pytest.fixture
async def store(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    monkeypatch.setattr(registration, "RENEW_S", 0.01)
    wait_patiently(monkeypatch)
    opened = await Store.connect(redis_url + "?db=7", PATIENCE_S)
    yield opened
    async with redis.asyncio.Redis.from_url(redis_url + "?db=7") as admin:
        await admin.flushdb()
    await opened.close()


async def test_a_worker_is_announced_with_its_prefixes_until_it_stops(store: Store) -> None:
    registered = Registration(store, OWN, WorkerMetrics())
    await registered.start()
    assert await store.list_workers() == [OWN]
    registered.prefixes.note([b"a" * 16, b"b" * 16], [])
    while (await store.lookup_prefix([OWN.key], [b"a" * 16, b"b" * 16]))[OWN.key].cached < 2:
        pass
    await registered.stop()
    assert await store.list_workers() == []


async def test_a_fleet_of_another_model_is_not_joined(store: Store) -> None:
    await store.register_worker(dataclasses.replace(OWN, worker_id="other", fingerprint="theirs"), 60.0)
    with pytest.raises(ForeignFleetError, match="theirs"):
        await Registration(store, OWN, WorkerMetrics()).start()
    assert [record.worker_id for record in await store.list_workers()] == ["other"]


async def test_a_fleet_of_another_commit_is_not_joined(store: Store) -> None:
    own = dataclasses.replace(OWN, model_commit="a" * 40)
    await store.register_worker(dataclasses.replace(own, worker_id="other", model_commit="b" * 40), 60.0)
    with pytest.raises(ForeignFleetError, match=f"--model .* is {'a' * 40}; .* other has {'b' * 40}"):
        await Registration(store, own, WorkerMetrics()).start()
    assert [record.worker_id for record in await store.list_workers()] == ["other"]


async def test_workers_that_join_at_one_moment_see_each_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = dataclasses.replace(OWN, worker_id="decode-2", incarnation="other", fingerprint="foreign")
    register = store.register_worker

    async def register_both(record: WorkerRecord, ttl_s: float) -> None:
        await register(other, ttl_s)
        await register(record, ttl_s)

    monkeypatch.setattr(store, "register_worker", register_both)
    with pytest.raises(ForeignFleetError, match="fingerprint"):
        await Registration(store, OWN, WorkerMetrics()).start()
    assert [worker.worker_id for worker in await store.list_workers()] == ["decode-2"]


@pytest.mark.parametrize("turns", range(5))
async def test_a_worker_leaves_although_it_has_just_changed(store: Store, turns: int) -> None:
    registered = Registration(store, OWN, WorkerMetrics())
    await registered.start()
    await asyncio.sleep(0)  # it waits for a change
    registered.announce_soon()
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S):
        await registered.stop()
    assert await store.list_workers() == []
