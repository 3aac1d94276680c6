"""Grants become leases, or are given back: both stores behave alike."""

from __future__ import annotations

import asyncio

import pytest

from runtime.state.records import (
    DecodeRoom,
    Grant,
    Hold,
    LostHolds,
    Nudge,
    PrefillRoom,
    QueueStatus,
    Settled,
    Settlement,
)
from tests.patience import PATIENCE_S
from tests.runtime.state.common import DECODE, PREFILL, ROOMY, AnyStore, entry, settle, subscribed


async def granted(either: AnyStore) -> None:
    await either.enqueue(entry("a"), 10)
    await either.grant("r1", PREFILL, [DECODE])


async def settled(either: AnyStore) -> None:
    await granted(either)
    assert await settle(either, "a", "p:1", DECODE) is Settled.OK


async def test_settling_leases_the_blocks_and_keeps_the_credit(either: AnyStore) -> None:
    await settled(either)
    assert await either.leases("d:1") == {"a": 4}
    assert await either.credits("p:1") == {"a": 50}
    assert await either.queue_status() == QueueStatus(0, 0)


async def test_where_nothing_waits_a_newcomer_is_leased_at_once(either: AnyStore) -> None:
    assert await either.lease_at_once(entry("a"), PREFILL, DECODE, 30)
    assert await either.leases("d:1") == {"a": 4}
    assert await either.credits("p:1") == {"a": 50}
    assert await either.queue_status() == QueueStatus(0, 0)
    assert await settle(either, "a", "p:1", DECODE) is Settled.OK, "it holds what a settled grant holds"


@pytest.mark.parametrize("reason", ["another waits", "no prompt fits", "no block is left"])
async def test_else_nothing_is_leased(either: AnyStore, reason: str) -> None:
    prefill, decode = PREFILL, DECODE
    match reason:
        case "another waits":
            await either.enqueue(entry("b"), 10)
        case "no prompt fits":
            prefill = PrefillRoom("p:1", limit_tokens=0)
        case "no block is left":
            decode = DecodeRoom("d:1", num_blocks=3, max_seqs=4)
    assert not await either.lease_at_once(entry("a"), prefill, decode, 30)
    assert await either.leases("d:1") == {}
    assert await either.credits("p:1") == {}


async def test_settling_twice_changes_nothing(either: AnyStore) -> None:
    await granted(either)
    for _ in range(2):
        assert await settle(either, "a", "p:1", DECODE) is Settled.OK
        assert await either.leases("d:1") == {"a": 4}
        assert await either.credits("p:1") == {"a": 50}


async def test_what_was_released_cannot_be_settled_again(either: AnyStore) -> None:
    await settled(either)
    await either.release_lease("a", "d:1")
    assert await settle(either, "a", "p:1", DECODE) is Settled.EXPIRED
    assert await either.leases("d:1") == {}


async def test_a_grant_is_settled_only_for_its_own_worker(either: AnyStore) -> None:
    await granted(either)
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
    await granted(either)
    full = DecodeRoom("d:2", num_blocks=3, max_seqs=4)
    assert await either.settle("a", "p:1", [full, DECODE], ttl_s=30) == Settlement(Settled.OK, "d:1")
    assert await either.leases("d:1") == {"a": 4}


async def test_a_grant_that_is_out_no_more_leaves_nothing(either: AnyStore) -> None:
    await granted(either)
    await either.dequeue("a")
    await either.enqueue(entry("a"), 10)
    assert await settle(either, "a", "p:1", DECODE) is Settled.EXPIRED
    assert await either.leases("d:1") == await either.credits("p:1") == {}
    assert await either.queue_status() == QueueStatus(1, 50)


@pytest.mark.usefixtures("time_passes")
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


@pytest.mark.usefixtures("time_passes")
async def test_an_unsettled_grant_gives_its_place_and_credit_back(either: AnyStore) -> None:
    await either.enqueue(entry("stalled"), 10)
    await either.enqueue(entry("next", due=9000), 10)
    assert len(await either.grant("r1", PrefillRoom("p:1", 10), [DECODE])) == 1
    assert await grants_after_expiry(either) == ["stalled"]
    assert await settle(either, "stalled", "p:1", DECODE) is Settled.OK
    assert await either.credits("p:1") == {"stalled": 50}


@pytest.mark.usefixtures("time_passes")
async def test_a_request_that_keeps_losing_grants_leaves_the_queue(either: AnyStore) -> None:
    await either.enqueue(entry("stalled"), 10)
    await either.enqueue(entry("next", due=9000), 10)
    assert len(await either.grant("r1", PrefillRoom("p:1", 10), [DECODE])) == 1
    assert [await grants_after_expiry(either) for _ in range(3)] == [["stalled"], ["stalled"], ["next"]]
    assert await settle(either, "stalled", "p:1", DECODE) is Settled.EXPIRED
    assert "stalled" not in await either.leases("d:1")
    assert (await either.queue_status()).waiting_tokens == 50


async def test_a_lease_is_released_once_and_everybody_hears_of_it(either: AnyStore) -> None:
    await settled(either)
    await either.enqueue(entry("waits"), 10)
    heard = await subscribed(either, "r9")
    assert await either.release_lease("a", "d:1")
    assert not await either.release_lease("a", "d:1")
    assert await asyncio.wait_for(anext(heard), PATIENCE_S) == Nudge()
    await heard.aclose()


async def test_nobody_hears_of_a_release_for_which_nothing_waits(either: AnyStore) -> None:
    await settled(either)
    heard = await subscribed(either, "r9")
    assert await either.release_lease("a", "d:1")
    await either.enqueue(entry("b", router="r9"), 10)
    await either.grant("r1", PrefillRoom("p:2", 100), [DECODE])
    grant = Grant("b", "r9", "p:2", "d:1")
    assert await asyncio.wait_for(anext(heard), PATIENCE_S) == grant, "no nudge came before it"
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


@pytest.mark.usefixtures("time_passes")
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


async def test_a_renewal_names_what_is_not_held_any_more(either: AnyStore) -> None:
    await either.take_holds(
        [Hold("kept", "p:1", 5), Hold("gone", "p:1", 5)], [Hold("kept", "d:1", 3)], ttl_s=30
    )
    await either.release_credit("gone", "p:1")
    credits_held = [("kept", "p:1"), ("gone", "p:1"), ("never", "p:2")]
    lost = await either.renew(credits_held, [("never", "d:2"), ("kept", "d:1")], ttl_s=30)
    assert lost == LostHolds((("gone", "p:1"), ("never", "p:2")), (("never", "d:2"),))
    assert await either.credits("p:1") == {"kept": 5}, "it is not entered by this"
