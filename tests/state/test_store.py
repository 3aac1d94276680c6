"""Both stores behave alike."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import pytest

from scheduling.admission.shares import Standing
from state.errors import QueueFull
from state.records import (
    DecodeRoom,
    DiskRecord,
    Grant,
    Hold,
    Leading,
    Nudge,
    PrefillRoom,
    QueueEntry,
    QueueStatus,
    Settled,
    Settlement,
    WorkerRecord,
)
from state.store import Store
from tests.patience import PATIENCE_S
from tests.state.common import DECODE, PREFILL, ROOMY, AnyStore, entry, settle, subscribed, worker


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


async def test_settling_leases_the_blocks_and_keeps_the_credit(either: AnyStore) -> None:
    await either.enqueue(entry("a"), 10)
    await either.grant("r1", PREFILL, [DECODE])
    assert await settle(either, "a", "p:1", DECODE) is Settled.OK
    assert await either.leases("d:1") == {"a": 4}
    assert await either.credits("p:1") == {"a": 50}
    assert await either.queue_status() == QueueStatus(0, 0)


async def test_settling_twice_changes_nothing(either: AnyStore) -> None:
    await either.enqueue(entry("a"), 10)
    await either.grant("r1", PREFILL, [DECODE])
    for _ in range(2):
        assert await settle(either, "a", "p:1", DECODE) is Settled.OK
        assert await either.leases("d:1") == {"a": 4}
        assert await either.credits("p:1") == {"a": 50}


async def test_what_was_released_cannot_be_settled_again(either: AnyStore) -> None:
    await either.enqueue(entry("a"), 10)
    await either.grant("r1", PREFILL, [DECODE])
    await settle(either, "a", "p:1", DECODE)
    await either.release_lease("a", "d:1")
    assert await settle(either, "a", "p:1", DECODE) is Settled.EXPIRED
    assert await either.leases("d:1") == {}


async def test_a_grant_is_settled_only_for_its_own_worker(either: AnyStore) -> None:
    await either.enqueue(entry("a"), 10)
    await either.grant("r1", PREFILL, [DECODE])
    assert await settle(either, "a", "p:2", DECODE) is Settled.EXPIRED
    assert await settle(either, "a", "p:1", DECODE) is Settled.OK


async def test_a_lease_not_yet_released_is_replaced_and_counts_once(either: AnyStore) -> None:
    tight = DecodeRoom("d:1", num_blocks=4, max_seqs=1)
    for _ in range(2):
        await either.enqueue(entry("a"), 10)
        await either.grant("r1", PREFILL, [ROOMY])
        assert await settle(either, "a", "p:1", tight, ROOMY) is Settled.OK
        assert await either.leases("d:1") == {"a": 4}
        await either.release_credit("a", "p:1")


async def test_a_grant_without_room_goes_back_to_its_place(either: AnyStore) -> None:
    await either.enqueue(entry("a", due=1), 10)
    await either.enqueue(entry("b", due=2), 10)
    await either.grant("r1", PrefillRoom("p:1", 10), [DECODE])
    full = [DecodeRoom(key, num_blocks=3, max_seqs=4) for key in ("d:2", "d:1")]
    assert await settle(either, "a", "p:1", *full) is Settled.NO_ROOM
    assert await either.credits("p:1") == {}
    assert await either.leases("d:1") == {}
    assert [item.request_key for item in await either.grant("r1", PrefillRoom("p:1", 10), [DECODE])] == ["a"]


async def test_grants_that_are_out_hold_their_room_against_other_routers(either: AnyStore) -> None:
    names, rooms = ("r1", "r2"), [DecodeRoom("d:1", 10, 4), DecodeRoom("d:2", 100, 1)]
    heard = [await subscribed(either, name) for name in names]
    for i in range(20):
        await either.enqueue(entry(f"k{i}", router=names[i % 2], due=i, tokens=1), 100)
    calls = [(name, PrefillRoom(f"p:{i}", 100)) for name in names for i in range(4)]
    await asyncio.gather(*(either.grant(name, room, rooms) for name, room in calls))
    assert (await either.queue_status()).waiting >= 17, "of 4 blocks each, two have room and one a seat"
    assert sum((await either.leases("d:1")).values()) <= 8
    assert len(await either.leases("d:2")) <= 1
    for event in heard:
        await event.aclose()


async def test_a_grant_settled_elsewhere_leaves_nothing_where_it_was(either: AnyStore) -> None:
    await either.enqueue(entry("a"), 10)
    (grant,) = await either.grant("r1", PREFILL, [DECODE, ROOMY])
    assert grant == Grant("a", "r1", "p:1", "d:1")
    assert await either.leases("d:1") == {"a": 4}
    assert await either.settle("a", "p:1", [ROOMY, DECODE], ttl_s=30) == Settlement(Settled.OK, "d:2")
    assert await either.leases("d:1") == {}
    assert await either.leases("d:2") == {"a": 4}


async def test_a_grant_s_own_room_serves_where_the_wanted_worker_has_none(either: AnyStore) -> None:
    await either.enqueue(entry("a"), 10)
    await either.grant("r1", PREFILL, [DECODE])
    full = DecodeRoom("d:2", num_blocks=3, max_seqs=4)
    assert await either.settle("a", "p:1", [full, DECODE], ttl_s=30) == Settlement(Settled.OK, "d:1")
    assert await either.leases("d:1") == {"a": 4}


async def test_a_grant_that_is_out_no_more_leaves_nothing(either: AnyStore) -> None:
    await either.enqueue(entry("a"), 10)
    await either.grant("r1", PREFILL, [DECODE])
    await either.dequeue("a")
    await either.enqueue(entry("a"), 10)
    assert await settle(either, "a", "p:1", DECODE) is Settled.EXPIRED
    assert await either.leases("d:1") == await either.credits("p:1") == {}
    assert await either.queue_status() == QueueStatus(1, 50)


async def test_a_grant_that_expires_takes_nothing_of_a_lease_that_is_held(either: AnyStore) -> None:
    await either.take_holds([], [Hold("a", "d:1", 6)], ttl_s=30)
    await either.enqueue(entry("a"), 10)
    assert len(await either.grant("r1", PREFILL, [DECODE])) == 1
    async with asyncio.timeout(PATIENCE_S):
        while (await either.queue_status()).waiting == 0:
            await asyncio.sleep(0.01)
    assert await either.leases("d:1") == {"a": 6}


async def grants_after_expiry(either: AnyStore) -> list[str]:
    async with asyncio.timeout(PATIENCE_S):
        while not (granted := await either.grant("r1", PrefillRoom("p:1", 10), [DECODE])):
            await asyncio.sleep(0.01)
    return [grant.request_key for grant in granted]


async def test_an_unsettled_grant_gives_its_place_and_credit_back(either: AnyStore) -> None:
    await either.enqueue(entry("stalled"), 10)
    await either.enqueue(entry("next", due=9000), 10)
    assert len(await either.grant("r1", PrefillRoom("p:1", 10), [DECODE])) == 1
    assert await grants_after_expiry(either) == ["stalled"]
    assert await settle(either, "stalled", "p:1", DECODE) is Settled.OK
    assert await either.credits("p:1") == {"stalled": 50}


async def test_a_request_that_keeps_losing_grants_leaves_the_queue(either: AnyStore) -> None:
    await either.enqueue(entry("stalled"), 10)
    await either.enqueue(entry("next", due=9000), 10)
    assert len(await either.grant("r1", PrefillRoom("p:1", 10), [DECODE])) == 1
    assert [await grants_after_expiry(either) for _ in range(3)] == [["stalled"], ["stalled"], ["next"]]
    assert await settle(either, "stalled", "p:1", DECODE) is Settled.EXPIRED
    assert "stalled" not in await either.leases("d:1")
    assert (await either.queue_status()).waiting_tokens == 50


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


async def test_a_lease_is_released_once_and_everybody_hears_of_it(either: AnyStore) -> None:
    await either.enqueue(entry("a"), 10)
    await either.grant("r1", PREFILL, [DECODE])
    await settle(either, "a", "p:1", DECODE)
    heard = await subscribed(either, "r9")
    assert await either.release_lease("a", "d:1")
    assert not await either.release_lease("a", "d:1")
    assert await asyncio.wait_for(anext(heard), PATIENCE_S) == Nudge()
    await heard.aclose()


async def test_a_grant_of_another_router_s_session_reaches_it_as_a_notice(either: AnyStore) -> None:
    heard = await subscribed(either, "r2")
    await either.enqueue(entry("a", router="r2"), 10)
    assert await either.grant("r1", PREFILL, [DECODE]) == []
    assert await asyncio.wait_for(anext(heard), PATIENCE_S) == Grant("a", "r2", "p:1", "d:1")
    await heard.aclose()


async def test_one_name_of_two_routers_is_served_at_both_and_leaves_nothing(either: AnyStore) -> None:
    """They share a place: whoever asks last has it, and the other, which asks again each second, the next."""
    stream = await subscribed(either, "r2")
    await either.enqueue(entry("a", router="r1"), 10)
    await either.enqueue(entry("a", router="r2"), 10)
    assert await either.grant("r1", PREFILL, [DECODE]) == []
    assert await asyncio.wait_for(anext(stream), PATIENCE_S) == Grant("a", "r2", "p:1", "d:1")
    assert await settle(either, "a", "p:1", DECODE) is Settled.OK
    await either.enqueue(entry("a", router="r1"), 10)
    assert len(await either.grant("r1", PREFILL, [ROOMY])) == 1
    assert await settle(either, "a", "p:1", ROOMY) is Settled.OK
    for decode in ("d:1", "d:2"):
        await either.release_credit("a", "p:1")
        await either.release_lease("a", decode)
        assert await either.leases(decode) == {}
    assert await either.credits("p:1") == {}
    assert await either.queue_status() == QueueStatus(0, 0)
    await stream.aclose()


async def test_what_is_renewed_does_not_expire(either: AnyStore) -> None:
    await either.enqueue(entry("kept", tokens=1), 10)
    await either.enqueue(entry("lost", tokens=1), 10)
    await either.grant("r1", PREFILL, [DECODE])
    for key in ("kept", "lost"):
        assert await settle(either, key, "p:1", DECODE, ttl_s=1) is Settled.OK
    await either.renew([("kept", "p:1")], [("kept", "d:1")], ttl_s=30)
    async with asyncio.timeout(PATIENCE_S):
        while "lost" in await either.leases("d:1"):
            await either.grant("r1", PREFILL, [DECODE])
            await asyncio.sleep(0.01)
    assert await either.leases("d:1") == {"kept": 4}
    assert await either.credits("p:1") == {"kept": 1}


async def cached(store: Store, worker_keys: list[str], hashes: list[bytes]) -> dict[str, int]:
    found = await store.lookup_prefix(worker_keys, hashes)
    assert not any(leading.on_disk for leading in found.values())
    return {key: leading.cached for key, leading in found.items()}


async def test_the_prefix_directory_counts_leading_blocks(store: Store) -> None:
    hashes = [bytes([i]) * 16 for i in range(4)]
    await store.publish_prefix("a:1", hashes, [])
    await store.publish_prefix("b:1", [hashes[0], hashes[2]], [])
    assert await cached(store, ["a:1", "b:1", "c:1"], hashes) == {"a:1": 4, "b:1": 1, "c:1": 0}
    await store.publish_prefix("a:1", [], [hashes[1]])
    assert await cached(store, ["a:1"], hashes) == {"a:1": 1}


async def test_a_long_prefix_is_looked_up_in_pieces_of_those_that_hold_it(store: Store) -> None:
    hashes = [number.to_bytes(16) for number in range(5000)]
    held = {"all:1": 5000, "most:1": 4097, "some:1": 1700, "few:1": 3, "none:1": 0}
    for worker_key, count in held.items():
        await store.publish_prefix(worker_key, hashes[:count], [])
    await store.publish_prefix("few:1", hashes[5:], [])
    assert await cached(store, list(held), hashes) == held
    assert await cached(store, list(held), []) == dict.fromkeys(held, 0)
    assert await cached(store, [], hashes) == {}


async def test_the_directory_counts_blocks_on_disk_behind_memory(store: Store) -> None:
    hashes = [number.to_bytes(16) for number in range(3000)]
    await store.publish_prefix("both:1", hashes[:700], [])
    await store.publish_prefix("both:1", hashes[500:2100], [], on_disk=True)
    await store.publish_prefix("disk:1", hashes[:2900], [], on_disk=True)
    await store.publish_prefix("gap:1", hashes[:3], [])
    await store.publish_prefix("gap:1", hashes[4:], [], on_disk=True)
    workers = ["both:1", "disk:1", "gap:1", "none:1"]
    assert await store.lookup_prefix(workers, hashes, {"both:1", "disk:1", "gap:1"}) == {
        "both:1": Leading(700, 1400),
        "disk:1": Leading(0, 2900),
        "gap:1": Leading(3),
        "none:1": Leading(0),
    }
    # A worker that announces no disk is not asked for it.
    assert await cached(store, workers, hashes) == {"both:1": 700, "disk:1": 0, "gap:1": 3, "none:1": 0}
    await store.publish_prefix("disk:1", [], hashes[1:2], on_disk=True)
    assert await store.lookup_prefix(["disk:1"], hashes, {"disk:1"}) == {"disk:1": Leading(0, 1)}


async def test_a_worker_is_announced_with_its_disk(store: Store) -> None:
    record = WorkerRecord("d", "1", "decode", "h:1", "fp", "m", 16, 10, disk=DiskRecord(5, 0.25, 0.5))
    await store.register_worker(record, 30)
    await store.publish_prefix(record.key, [b"x"], [], on_disk=True)
    assert await store.list_workers() == [record]
    assert record.disk is not None
    assert record.disk.read_s(3) == 1.75
    await store.unregister_worker("d", "1")
    assert await store.lookup_prefix([record.key], [b"x"], {record.key}) == {record.key: Leading(0)}


async def test_a_tenant_ahead_of_the_others_is_over_its_share(either: AnyStore) -> None:
    assert await either.charge_tenant("a", 100, band=1000, lead=50) == Standing(100, None, 0, is_over=False)
    assert await either.charge_tenant("b", 1.5, band=1000, lead=50) == Standing(101.5, 100, 1, is_over=False)
    assert await either.charge_tenant("b", 60, band=1000, lead=50) == Standing(161.5, 100, 1, is_over=False)
    assert await either.charge_tenant("b", 60, band=1000, lead=50) == Standing(161.5, 100, 1, is_over=True)
    assert await either.charge_tenant("b", 0, band=1000, lead=math.inf) == Standing(
        161.5, 100, 1, is_over=False
    )
    assert await either.charge_tenant("a", 12, band=1000, lead=50) == Standing(112, 161.5, 1, is_over=False)
    assert await either.charge_tenant("b", 1, band=1000, lead=50) == Standing(162.5, 112, 1, is_over=False)


async def test_nobody_counts_as_further_behind_than_a_band(either: AnyStore) -> None:
    await either.charge_tenant("modest", 0, band=100, lead=math.inf)
    await either.charge_tenant("greedy", 1000, band=100, lead=math.inf)
    assert await either.charge_tenant("greedy", 5, band=100, lead=100) == Standing(
        1005, 900, 1, is_over=False
    )
    assert await either.charge_tenant("modest", 1, band=100, lead=0) == Standing(906, 1005, 1, is_over=False)


async def test_a_refund_takes_a_charge_back(either: AnyStore) -> None:
    await either.charge_tenant("a", 0.1, band=1000, lead=1)
    await either.charge_tenant("a", 70, band=1000, lead=1)
    await either.refund_tenant("a", 70)
    await either.refund_tenant("nobody", 70)
    assert (await either.charge_tenant("a", 0, band=1000, lead=1)).counter == pytest.approx(0.1)


async def test_a_charge_below_nothing_is_refused(either: AnyStore) -> None:
    with pytest.raises(ValueError, match="tokens is -1; accepted: finite, from 0"):
        await either.charge_tenant("a", -1, band=1000, lead=0)
    with pytest.raises(ValueError, match="tokens is -1; accepted: finite, from 0"):
        await either.refund_tenant("a", -1)
