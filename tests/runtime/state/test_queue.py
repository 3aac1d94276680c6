"""Requests wait in order, and are granted in order: both stores behave alike."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from runtime.state.errors import QueueFull
from runtime.state.records import DecodeRoom, Grant, Hold, PrefillRoom, QueueEntry, QueueStatus, Settled
from tests.patience import PATIENCE_S
from tests.runtime.state.common import DECODE, PREFILL, ROOMY, AnyStore, entry, settle, subscribed


async def test_the_queue_orders_by_class_and_then_by_due_time(either: AnyStore) -> None:
    await either.enqueue(entry("batch", slo_class=3, due=0), 10)
    await either.enqueue(entry("late", due=9000), 10)
    await either.enqueue(entry("early", due=1000), 10)
    place = await either.enqueue(entry("interactive", slo_class=1, due=90_000, tokens=7), 10)
    assert (place.position, place.work_ahead_tokens) == (0, 0)
    place = await either.enqueue(entry("last", slo_class=3, due=1), 10)
    assert (place.position, place.work_ahead_tokens) == (4, 157)
    granted = await either.grant("r1", PrefillRoom("p:1", 10_000), [DecodeRoom("d:1", 100, 100)])
    assert [grant.request_key for grant in granted] == ["interactive", "early", "late", "batch", "last"]


async def test_prompts_up_to_a_number_are_granted_whatever_their_tokens(either: AnyStore) -> None:
    for key in "abcde":
        await either.enqueue(entry(key, tokens=500), 10)
    room = PrefillRoom("p:1", limit_tokens=100, min_prompts=3)
    roomy = [DecodeRoom("d:1", 100, 9)]
    assert [item.request_key for item in await either.grant("r1", room, roomy)] == ["a", "b", "c"]
    assert await either.grant("r1", room, roomy) == []
    assert await either.release_credit("b", "p:1")
    assert [item.request_key for item in await either.grant("r1", room, roomy)] == ["d"]


async def test_a_call_grants_no_more_than_it_asks_for(either: AnyStore) -> None:
    for name in "abc":
        await either.enqueue(entry(name, due=ord(name)), 10)
    granted = await either.grant(
        "r1", PrefillRoom("p:1", 10_000, max_grants=2), [DecodeRoom("d:1", 100, 100)]
    )
    assert [grant.request_key for grant in granted] == ["a", "b"]


async def test_work_ahead_is_summed_over_long_queues(either: AnyStore) -> None:
    for i in range(2100):
        await either.enqueue(entry(f"k{i}", due=i, tokens=2), 3000)
    place = await either.enqueue(entry("end", due=10_000), 3000)
    assert (place.position, place.work_ahead_tokens) == (2100, 4200)


async def test_enqueueing_twice_only_moves(either: AnyStore) -> None:
    await either.enqueue(entry("a"), 1)
    await either.enqueue(entry("a", due=5), 1)
    assert await either.queue_status() == QueueStatus(1, 50)
    with pytest.raises(QueueFull, match="1 requests are waiting"):
        await either.enqueue(entry("b"), 1)


async def test_the_queue_never_grows_past_its_bound(either: AnyStore) -> None:
    """Nor by what would go first, and what waits already is not pushed out."""
    for key in "abc":
        await either.enqueue(entry(key, slo_class=3), 3)
    with pytest.raises(QueueFull, match="3 requests are waiting"):
        await either.enqueue(entry("first", slo_class=1, due=0), 3)
    assert await either.queue_status() == QueueStatus(3, 150)
    await either.dequeue("b")
    await either.enqueue(entry("first", slo_class=1, due=0), 3)


async def test_grants_stop_at_the_worker_s_limit(either: AnyStore) -> None:
    for key in "abc":
        await either.enqueue(entry(key), 10)
    assert len(await either.grant("r1", PREFILL, [DECODE])) == 2
    assert await either.grant("r1", PREFILL, [DECODE]) == []
    assert await either.release_credit("a", "p:1")
    assert [item.request_key for item in await either.grant("r1", PREFILL, [DecodeRoom("d:1", 100, 9)])] == [
        "c"
    ]


async def test_what_a_granted_request_held_before_counts_once(either: AnyStore) -> None:
    await either.take_holds([Hold("a", "p:1", 50)], [], ttl_s=5)
    for key in "ab":
        await either.enqueue(entry(key), 10)
    assert len(await either.grant("r1", PREFILL, [DECODE])) == 2
    assert await either.credits("p:1") == {"a": 50, "b": 50}


async def test_a_head_that_fits_nowhere_waits_and_is_not_passed(either: AnyStore) -> None:
    await either.enqueue(QueueEntry("large", "r1", 2, 0, 10, blocks=11), 10)
    await either.enqueue(entry("small", due=5000), 10)
    assert await either.grant("r1", PREFILL, [DECODE]) == []
    assert [
        item.request_key for item in await either.grant("r1", PREFILL, [DECODE, DecodeRoom("d:2", 11, 1)])
    ] == [
        "large",
        "small",
    ]


async def test_a_worker_passes_requests_whose_adapter_it_lacks(either: AnyStore) -> None:
    for place, (key, adapter) in enumerate([("a", "red"), ("b", "blue"), ("c", ""), ("d", "red")]):
        await either.enqueue(entry(key, due=place, adapter=adapter), 10)
    red, plain = PrefillRoom("p:1", 10_000, adapters=("red",)), PrefillRoom("p:2", 10_000)
    rooms = [replace(ROOMY, adapters=("red",)), replace(ROOMY, key="d:3", adapters=("blue", "red"))]
    assert [grant.request_key for grant in await either.grant("r1", plain, rooms)] == ["c"]
    granted = await either.grant("r1", red, rooms)
    assert [(grant.request_key, grant.decode_key) for grant in granted] == [("a", "d:2"), ("d", "d:2")]
    blue = PrefillRoom("p:3", 10_000, adapters=("blue",))
    granted = await either.grant("r1", blue, rooms)
    assert [(grant.request_key, grant.decode_key) for grant in granted] == [("b", "d:3")]


async def test_a_request_waits_for_a_decode_worker_with_its_adapter(either: AnyStore) -> None:
    await either.enqueue(entry("a", adapter="red"), 10)
    red = PrefillRoom("p:1", 10_000, adapters=("red",))
    assert await either.grant("r1", red, [ROOMY]) == []
    granted = await either.grant("r1", red, [ROOMY, replace(DECODE, adapters=("red",))])
    assert [grant.decode_key for grant in granted] == [DECODE.key]


async def test_a_router_that_nobody_listens_for_gets_no_grants(either: AnyStore) -> None:
    await either.enqueue(entry("orphan", router="gone"), 10)
    await either.enqueue(entry("next", due=9000), 10)
    granted = await either.grant("r1", PrefillRoom("p:1", 10), [DECODE])
    assert [grant.request_key for grant in granted] == ["next"]
    assert await either.credits("p:1") == {"next": 50}
    assert not await either.dequeue("orphan")


async def test_enqueued_again_a_request_only_moves_forward(either: AnyStore) -> None:
    await either.enqueue(entry("first", due=5000), 10)
    await either.enqueue(entry("second", due=6000), 10)
    assert (await either.enqueue(entry("first", due=9000), 10)).position == 0
    assert (await either.enqueue(entry("second", due=1000), 10)).position == 0
    assert (await either.enqueue(entry("second", slo_class=3, due=0), 10)).position == 1


@pytest.mark.usefixtures("time_passes")
async def test_requests_due_on_arrival_go_in_the_order_of_arrival(either: AnyStore) -> None:
    for key in "cab":
        before = (await either.enqueue(entry(key, slo_class=0, due=0), 10)).position
        while (await either.enqueue(entry("!clock", slo_class=0, due=0), 10)).position <= before:
            await either.dequeue("!clock")
        await either.dequeue("!clock")
    for key in "cab":
        await either.enqueue(entry(key, slo_class=0, due=0), 10)
    granted = await either.grant("r1", PrefillRoom("p:1", 1000), [DecodeRoom("d:1", 100, 9)])
    assert [grant.request_key for grant in granted] == ["c", "a", "b"]


async def test_a_grant_stands_when_its_request_is_enqueued_again(either: AnyStore) -> None:
    await either.enqueue(entry("a"), 10)
    await either.grant("r1", PREFILL, [DECODE])
    assert (await either.enqueue(entry("a"), 10)).position == 0
    assert await either.grant("r1", PrefillRoom("p:2", 100), [DECODE]) == []
    assert await settle(either, "a", "p:1", DECODE) is Settled.OK
    assert await either.queue_status() == QueueStatus(0, 0)


async def test_a_dequeued_request_is_never_granted(either: AnyStore) -> None:
    await either.enqueue(entry("a"), 10)
    assert await either.dequeue("a")
    assert not await either.dequeue("a")
    assert await either.grant("r1", PREFILL, [DECODE]) == []


async def test_a_grant_of_another_router_s_session_reaches_it_as_a_notice(either: AnyStore) -> None:
    heard = await subscribed(either, "r2")
    await either.enqueue(entry("a", router="r2"), 10)
    assert await either.grant("r1", PREFILL, [DECODE]) == []
    assert await asyncio.wait_for(anext(heard), PATIENCE_S) == Grant("a", "r2", "p:1", "d:1")
    await heard.aclose()
