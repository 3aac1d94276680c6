"""A newcomer for whom nothing has to wait is leased without a place in the queue, and loses nothing by it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.core.core import RouterCore
from router.core.model.actions import (
    Action,
    AskGrants,
    Dequeue,
    Enqueue,
    Offer,
    ReleaseCredit,
    ReleaseLease,
    SendPrefill,
    SendReceive,
    Settle,
    TellAccepted,
)
from router.core.model.events import (
    CancelAsked,
    Enqueued,
    Granted,
    StoreCall,
    StoreFailed,
    Timer,
    TimerFired,
    TimerKind,
    WorkerLost,
)
from scheduling.placement import Placement
from scheduling.request import Slo
from tests.router.core_driver import ARRIVAL, ONE, TWO, call, core_of, tell

PREFILL = replace(ONE, worker_id="p1", role="prefill", address="p1:1")
KEY = "t/r1/0"
LEASED = (Granted(KEY, PREFILL.key, ONE.key, is_leased=True), Enqueued(KEY, 0, 0))


def idle() -> RouterCore:
    return core_of("slack", PREFILL, ONE, TWO, placement=Placement.DISAGGREGATED)


def offer_in(actions: list[Action]) -> Offer | None:
    (asked,) = [action for action in actions if isinstance(action, Enqueue)]
    return asked.offer


def test_a_lease_at_once_sends_the_request_to_its_workers() -> None:
    core = idle()
    offer = offer_in(tell(core, call(ARRIVAL, request_id="r1")))
    assert offer is not None
    assert (offer.worker.key, offer.decoder.key) == (PREFILL.key, ONE.key)
    actions = tell(core, *LEASED)
    kinds = [type(action) for action in actions]
    assert {TellAccepted, SendReceive, SendPrefill} <= set(kinds)
    assert not {AskGrants, Settle} & set(kinds)
    ended = tell(core, CancelAsked("t", "r1"))
    assert ReleaseCredit(KEY, PREFILL.key) in ended
    assert ReleaseLease(KEY, ONE.key) in ended


@pytest.mark.parametrize("slo", [Slo(ttft_ms=60_000), Slo(tpot_ms=900), Slo(deadline_ms=60_000)])
def test_who_states_a_latency_takes_a_place(slo: Slo) -> None:
    """It may be refused, which nobody who holds a lease may be."""
    assert offer_in(tell(idle(), call(ARRIVAL, request_id="r1", slo=slo))) is None


def test_behind_another_there_is_no_offer() -> None:
    core = idle()
    tell(core, call(ARRIVAL, request_id="r1"))
    assert offer_in(tell(core, call(ARRIVAL, listener=2, request_id="r2"))) is None


def test_a_lease_for_what_has_ended_is_given_back() -> None:
    core = idle()
    tell(core, call(ARRIVAL, request_id="r1"), CancelAsked("t", "r1"))
    actions = tell(core, *LEASED)
    assert {ReleaseCredit(KEY, PREFILL.key), ReleaseLease(KEY, ONE.key), Dequeue(KEY)} <= set(actions)


def test_a_lease_on_a_lost_worker_is_given_back_and_the_request_waits() -> None:
    core = idle()
    tell(core, call(ARRIVAL, request_id="r1"), WorkerLost(ONE.key, "its stream broke"))
    actions = tell(core, *LEASED)
    assert {ReleaseCredit(KEY, PREFILL.key), ReleaseLease(KEY, ONE.key)} <= set(actions)
    assert not any(isinstance(action, SendPrefill) for action in actions)
    assert any(isinstance(action, Enqueue) and action.offer is None for action in actions)


def test_leases_of_a_failed_call_are_released_once_the_store_is_back() -> None:
    core = idle()
    tell(core, call(ARRIVAL, request_id="r1"))
    tell(core, StoreFailed(StoreCall.ENQUEUE, KEY, "no answer", PREFILL.key, (ONE.key,)))
    again = [
        action
        for action in tell(core, TimerFired(Timer(TimerKind.CHORES)), Enqueued("t/other/0", 0, 0))
        if isinstance(action, ReleaseCredit | ReleaseLease | Dequeue)
    ]
    assert {ReleaseCredit(KEY, PREFILL.key), ReleaseLease(KEY, ONE.key)} <= set(again)
    assert Dequeue(KEY, PREFILL.key, (ONE.key,)) in again
