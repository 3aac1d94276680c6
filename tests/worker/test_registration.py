"""The fleet learns of a worker through Redis."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
import redis.asyncio
from hypothesis import given
from hypothesis import strategies as st

from state.records import WorkerRecord
from state.store import Store
from tests.growth import MOST_GROWTH, growth
from worker import registration
from worker.errors import ForeignFleetError
from worker.metrics import WorkerMetrics
from worker.registration import PrefixChanges, Registration

OWN = WorkerRecord("decode-1", "inc", "decode", "h:1", "fp", "model", 16, 100)
hashes = st.integers(0, 4).map(lambda number: bytes([number]))
news = st.lists(
    st.tuples(
        st.lists(hashes, max_size=3), st.lists(hashes, max_size=3), st.sampled_from(["", "take", "lose"])
    ),
    max_size=12,
)


@given(news)
def test_the_directory_ends_up_with_what_is_held(steps: list[tuple[list[bytes], list[bytes], str]]) -> None:
    told = PrefixChanges()
    held: set[bytes] = set()
    directory: set[bytes] = set()
    for added, removed, what in steps:
        gone = [block_hash for block_hash in removed if block_hash not in added]
        told.note(added, gone)
        held = (held | set(added)) - set(gone)
        if what == "lose":
            directory.clear()
            told.announce_all_again()
        elif what == "take":
            now, no_more = told.take(1000)
            assert not set(now) & directory, "told twice"
            directory = (directory | set(now)) - set(no_more)
            assert directory == held
    now, no_more = told.take(1000)
    assert (directory | set(now)) - set(no_more) == held


def test_a_renewal_costs_what_changed_and_not_what_is_cached() -> None:
    def prepare(num_cached: int) -> Callable[[], object]:
        told = PrefixChanges()
        told.note(_hashes(0, num_cached), [])
        told.take(num_cached)
        told.note(_hashes(num_cached, num_cached + 200), _hashes(0, 200))
        return lambda: told.take(1000)

    assert growth(prepare) < MOST_GROWTH


def _hashes(first: int, end: int) -> list[bytes]:
    return [number.to_bytes(16) for number in range(first, end)]


async def test_an_emptied_redis_is_told_of_a_large_pool_in_pieces(
    store: Store, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    publish = store.publish_prefix

    async def publish_counted(worker_key: str, added: Sequence[bytes], removed: Sequence[bytes]) -> None:
        told.append(len(added) + len(removed))
        await publish(worker_key, added, removed)

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


async def _until_known(store: Store, held: list[bytes]) -> None:
    while (await store.lookup_prefix([OWN.key], held))[OWN.key] < len(held):
        await asyncio.sleep(0.01)


@pytest.fixture
async def store(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    monkeypatch.setattr(registration, "RENEW_S", 0.01)
    opened = await Store.connect(redis_url + "?db=7")
    yield opened
    async with redis.asyncio.Redis.from_url(redis_url + "?db=7") as admin:
        await admin.flushdb()
    await opened.close()


async def test_a_worker_is_announced_with_its_prefixes_until_it_stops(store: Store) -> None:
    registered = Registration(store, OWN, WorkerMetrics())
    await registered.start()
    assert await store.list_workers() == [OWN]
    registered.prefixes.note([b"a" * 16, b"b" * 16], [])
    while (await store.lookup_prefix([OWN.key], [b"a" * 16, b"b" * 16]))[OWN.key] < 2:
        pass
    await registered.stop()
    assert await store.list_workers() == []


async def test_a_fleet_of_another_model_is_not_joined(store: Store) -> None:
    await store.register_worker(dataclasses.replace(OWN, worker_id="other", fingerprint="theirs"), 60.0)
    with pytest.raises(ForeignFleetError, match="theirs"):
        await Registration(store, OWN, WorkerMetrics()).start()
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
