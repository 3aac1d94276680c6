"""Tenants take turns with seats: both stores alike."""

from __future__ import annotations

import pytest
import redis

from runtime.state import keys
from runtime.state.records import DecodeRoom, PrefillRoom, QueueEntry, Settled
from runtime.state.store import Store
from tests.runtime.state.common import AnyStore, settle

PREFILL = PrefillRoom("p:1", 10_000, max_grants=1)
SEATS = DecodeRoom("d:1", 1000, 8)


def asked(
    key: str, due: int = 30_000, *, router: str = "r1", seats: int = 1, firm: bool = False
) -> QueueEntry:
    return QueueEntry(key, router, 2, due, 5, blocks=1, seats=seats, share=1000 * seats, takes_turns=not firm)


async def start(store: AnyStore, *, by: str = "r1") -> str | None:
    """Start one request on the worker; return its key."""
    for grant in await store.grant(by, PREFILL, [SEATS]):
        assert await settle(store, grant.request_key, "p:1", SEATS) is Settled.OK
        assert await store.release_credit(grant.request_key, "p:1")
        return grant.request_key
    return None


async def started(store: AnyStore) -> list[str]:
    found = []
    while (key := await start(store)) is not None:
        found.append(key)
    return found


async def test_the_next_seat_goes_to_the_tenant_with_the_fewest(either: AnyStore) -> None:
    for number in range(20):
        await either.enqueue(asked(f"big/{number}", number), 100)
    assert len(await started(either)) == 8
    for number in range(3):
        await either.enqueue(asked(f"small/{number}", 30_000 + number), 100)
    order = []
    for number in range(8):
        assert await either.release_lease(f"big/{number}", "d:1")
        order.append(await start(either))
    # Once both have four, ties go to what is due first.
    assert order == ["small/0", "small/1", "small/2", "big/8", "big/9", "big/10", "big/11", "big/12"]


async def test_seats_are_counted_by_sequences(either: AnyStore) -> None:
    for number in range(2):
        await either.enqueue(asked(f"big/{number}", number, seats=4), 100)
    assert await started(either) == ["big/0", "big/1"]
    await either.enqueue(asked("small/0"), 100)
    assert await start(either) is None, "all eight seats are taken"
    assert await either.leases("d:1") == {"big/0": 1, "big/1": 1}
    assert await either.release_lease("big/0", "d:1")
    for number in range(2, 7):
        await either.enqueue(asked(f"big/{number}", number), 100)
    assert await started(either) == ["small/0", "big/2", "big/3", "big/4"]


async def test_more_choices_than_seats_take_all_of_them(either: AnyStore) -> None:
    await either.enqueue(asked("a/0", seats=9), 100)
    assert await started(either) == ["a/0"]
    await either.enqueue(asked("a/1"), 100)
    assert await start(either) is None
    assert await either.release_lease("a/0", "d:1")
    assert await start(either) == "a/1"
    await either.enqueue(asked("a/2", seats=9), 100)
    assert await start(either) is None


async def test_a_promised_request_keeps_its_place(either: AnyStore) -> None:
    await either.enqueue(asked("big/0"), 100)
    assert await start(either) == "big/0"
    await either.enqueue(asked("big/first", 10), 100)
    await either.enqueue(asked("big/promised", 20_000, firm=True), 100)
    await either.enqueue(asked("small/early", 15_000), 100)
    await either.enqueue(asked("small/late", 30_000), 100)
    assert await started(either) == ["small/early", "big/first", "big/promised", "small/late"]


async def test_classes_come_before_turns(either: AnyStore) -> None:
    await either.enqueue(asked("small/0"), 100)
    for number in range(3):
        await either.enqueue(QueueEntry(f"big/{number}", "r1", 1, number, 5, blocks=1), 100)
    assert await started(either) == ["big/0", "big/1", "big/2", "small/0"]


async def test_a_turn_passes_whose_adapter_the_worker_does_not_have(either: AnyStore) -> None:
    await either.enqueue(asked("big/0", 0), 100)
    assert await start(either) == "big/0"
    await either.enqueue(asked("big/1", 1), 100)
    await either.enqueue(QueueEntry("small/0", "r1", 2, 5, 5, blocks=1, adapter="red"), 100)
    assert await start(either) == "big/1"


async def test_what_an_older_router_took_out_of_the_queue_has_no_turn(store: Store, redis_url: str) -> None:
    await store.enqueue(asked("big/0", 0), 100)
    assert await start(store) == "big/0"
    for key, firm in (("small/0", False), ("small/1", True), ("big/1", False), ("small/2", False)):
        await store.enqueue(asked(key, 100, firm=firm), 100)
    with redis.Redis.from_url(redis_url, decode_responses=True) as admin:
        admin.zrem(keys.queue(), "small/0", "small/1")
        admin.hdel(keys.entries(), "small/0", "small/1")
        assert await started(store) == ["big/1", "small/2"], "a turn found in vain falls to the next tenant"
        assert not admin.exists(*keys.turns()[3:])


@pytest.mark.parametrize("how", ["expired", "given back", "dequeued"])
async def test_a_grant_in_vain_leaves_no_seat(either: AnyStore, how: str) -> None:
    await either.enqueue(asked("big/0", 0), 100)
    assert await either.grant("r1", PREFILL, [SEATS])
    if how == "given back":
        await either.release_credit("big/0", "p:1")
        await either.release_lease("big/0", "d:1")
        await either.dequeue("big/0")
    elif how == "dequeued":
        await either.dequeue("big/0")
        await either.release_lease("big/0", "d:1")
    else:
        assert await settle(either, "big/0", "p:1", DecodeRoom("d:1", 0, 0)) is Settled.NO_ROOM
        assert await either.dequeue("big/0")
    await either.enqueue(asked("big/1", 1), 100)
    await either.enqueue(asked("small/0", 2), 100)
    assert await started(either) == ["big/1", "small/0"], "nobody holds anything, so the first goes first"
