"""A store that is slow is not asked the more for it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import redis.asyncio

from router.core.model.actions import Dequeue, Enqueue, Offer, RefundTenant, Renew, TakeHolds
from router.core.model.events import Enqueued, Event, Granted
from router.links.store_calls import StoreCalls
from runtime.state.records import DecodeRoom, PrefillRoom, QueueEntry
from runtime.state.store import Store
from tests.patience import PATIENCE_S

KEYS = [f"t/r{i}/0" for i in range(50)]
CAPACITY = 100


def place(key: str, due_in_ms: int, slo_class: int = 1) -> Enqueue:
    return Enqueue(QueueEntry(key, "router-a", slo_class, due_in_ms, work_tokens=1, blocks=1), CAPACITY)


@pytest.fixture
async def heard() -> list[Event]:
    return []


@pytest.fixture
async def calls(store: Store, heard: list[Event]) -> StoreCalls:
    def crashed() -> None:
        raise AssertionError("a store call crashed")

    return StoreCalls(store, "router-a", heard.append, crashed)


async def test_asking_again_of_a_slow_store_does_not_pile_up(
    calls: StoreCalls, store: Store, redis_url: str, heard: list[Event]
) -> None:
    async with redis.asyncio.from_url(redis_url) as admin:
        await admin.client_pause(60_000, all=False)
        for due_in_ms in range(20, 0, -1):
            for key in KEYS:
                calls.do(place(key, due_in_ms))
            calls.do(Renew((), ()))
        assert len(calls) == len(KEYS) + 1
        await admin.client_unpause()
    await calls.settle(timeout_s=PATIENCE_S)
    assert len(calls) == 0
    assert sorted(action.request_key for action in heard if isinstance(action, Enqueued)) == sorted(KEYS)
    assert (await store.queue_status()).waiting == len(KEYS)


async def test_a_newcomer_is_leased_at_once_or_gets_a_place(
    calls: StoreCalls, store: Store, heard: list[Event]
) -> None:
    offer = Offer(PrefillRoom("p:1", 8), DecodeRoom("d:1", 8, 8))
    calls.do(replace(place(KEYS[0], 10), offer=offer))
    await calls.settle(timeout_s=PATIENCE_S)
    assert heard == [Granted(KEYS[0], "p:1", "d:1", is_leased=True), Enqueued(KEYS[0], 0, 0)]
    assert await store.leases("d:1") == {KEYS[0]: 1}
    calls.do(place(KEYS[1], 10))
    calls.do(replace(place(KEYS[2], 20), offer=offer))
    await calls.settle(timeout_s=PATIENCE_S)
    assert heard[2:] == [Enqueued(KEYS[1], 0, 0), Enqueued(KEYS[2], 1, 1)]


async def test_what_is_asked_for_last_counts(calls: StoreCalls, store: Store, heard: list[Event]) -> None:
    for key in KEYS[:2]:
        calls.do(place(key, due_in_ms=5000))
    calls.do(place(KEYS[1], due_in_ms=0, slo_class=0))
    await calls.settle(timeout_s=PATIENCE_S)
    calls.do(place(KEYS[0], due_in_ms=5000))
    await calls.settle(timeout_s=PATIENCE_S)
    assert heard[-1] == Enqueued(KEYS[0], position=1, work_ahead_tokens=1)


async def test_a_place_given_up_and_asked_for_anew_is_asked_for_after(
    calls: StoreCalls, store: Store, heard: list[Event]
) -> None:
    """The second place is not melted into the first, which the call between them takes away."""
    for action in (place(KEYS[0], 10), Dequeue(KEYS[0]), place(KEYS[0], 20), place(KEYS[0], 30)):
        calls.do(action)
    assert len(calls) == 3
    await calls.settle(timeout_s=PATIENCE_S)
    assert [type(event) for event in heard] == [Enqueued, Enqueued]
    assert (await store.queue_status()).waiting == 1


async def test_refunds_and_holds_do_not_wait_for_each_other(
    calls: StoreCalls, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A router that refuses much would have ever more of them waiting."""
    under_way, answered = [], asyncio.Event()

    async def slow(*args: object) -> None:
        under_way.append(args)
        await answered.wait()

    for name in ("refund_tenant", "take_holds"):
        monkeypatch.setattr(store, name, slow)
    for _ in range(50):
        calls.do(RefundTenant("t/r/0", "t", 1.0))
    calls.do(TakeHolds((), ()))
    await asyncio.sleep(0)
    assert len(under_way) == 51
    answered.set()
    await calls.settle(timeout_s=PATIENCE_S)
    assert len(calls) == 0
