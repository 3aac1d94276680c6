"""Requests with a LoRA adapter are placed where it is, and refused where it is nowhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.core.core import RouterCore
from router.core.model.actions import Action, AskGrants, Dequeue, Enqueue, Reject, SendDecode, SendReceive
from router.core.model.events import (
    DrainAsked,
    Granted,
    SettleAnswered,
    Timer,
    TimerFired,
    TimerKind,
    WorkerJoined,
    WorkerLoad,
    WorkerLost,
)
from router.errors import Reason
from runtime.state.records import Settled
from scheduling.placement import Placement
from tests.router.core_driver import ARRIVAL, COST, ONE, TWO, arrive, call, core_of, tell

RED, BLUE = "1" * 32, "2" * 32
HAS_RED = replace(TWO, adapters={"red": RED})
PREFILL = replace(HAS_RED, worker_id="p1", role="prefill", address="p1:1")
WANTS_RED = call(ARRIVAL, adapter=RED)
KEY = "t/r1/0"


def of_kind(actions: list[Action], kind: type[Action]) -> list[Action]:
    return [action for action in actions if isinstance(action, kind)]


@pytest.mark.parametrize("policy", ["slack", "chunked"])
def test_a_worker_without_the_adapter_is_not_offered_alone(policy: str) -> None:
    core = core_of(policy, ONE, HAS_RED)
    actions = arrive(core, 1, WANTS_RED)
    (enqueued,) = of_kind(actions, Enqueue)
    assert isinstance(enqueued, Enqueue)
    assert enqueued.entry.adapter == RED
    offered = [action for action in actions if isinstance(action, AskGrants)]
    assert {offer.worker.key: offer.worker.adapters for offer in offered}[HAS_RED.key] == (RED,)
    for offer in offered:
        assert all(room.adapters == offer.worker.adapters for room in offer.decoders)


def test_the_command_carries_the_adapter() -> None:
    core = core_of("slack", ONE, HAS_RED)
    arrive(core, 1, WANTS_RED)
    granted = Granted(KEY, HAS_RED.key, HAS_RED.key)
    actions = tell(core, granted, SettleAnswered(KEY, HAS_RED.key, HAS_RED.key, Settled.OK))
    (sent,) = [action for action in actions if isinstance(action, SendDecode)]
    assert (sent.worker_key, sent.spec.adapter) == (HAS_RED.key, RED)


def test_a_handoff_goes_to_a_decode_worker_with_the_adapter() -> None:
    core = core_of("slack", PREFILL, ONE, HAS_RED, placement=Placement.DISAGGREGATED)
    arrive(core, 1, WANTS_RED)
    granted = Granted(KEY, PREFILL.key, HAS_RED.key)
    actions = tell(core, granted, SettleAnswered(KEY, PREFILL.key, HAS_RED.key, Settled.OK))
    (sent,) = [action for action in actions if isinstance(action, SendReceive)]
    assert (sent.worker_key, sent.spec.adapter) == (HAS_RED.key, RED)


def test_a_grant_for_a_worker_without_the_adapter_is_given_back() -> None:
    core = core_of("slack", ONE, HAS_RED)
    arrive(core, 1, WANTS_RED)
    assert Dequeue(KEY) in tell(core, Granted(KEY, ONE.key, ONE.key))


def refusal(core: RouterCore) -> Reason:
    (rejected,) = [action for action in tell(core, WANTS_RED) if isinstance(action, Reject)]
    return rejected.error.reason


def test_an_adapter_that_no_worker_has_is_refused() -> None:
    assert refusal(core_of("slack", ONE, replace(TWO, adapters={"blue": BLUE}))) is Reason.NO_WORKER


def test_both_sides_of_a_handoff_must_have_the_adapter() -> None:
    plain = replace(PREFILL, adapters={})
    assert refusal(core_of("slack", plain, HAS_RED, placement=Placement.DISAGGREGATED)) is Reason.NO_WORKER
    assert refusal(core_of("slack", PREFILL, ONE, placement=Placement.DISAGGREGATED)) is Reason.NO_WORKER


@pytest.mark.parametrize("event", [WorkerLost(HAS_RED.key, "gone"), DrainAsked(HAS_RED.worker_id)])
def test_a_request_leaves_the_queue_with_the_last_worker_for_it(event: WorkerLost | DrainAsked) -> None:
    core = core_of("slack", ONE, HAS_RED)
    arrive(core, 1, WANTS_RED)
    tell(core, event)
    assert Dequeue(KEY) in tell(core, TimerFired(Timer(TimerKind.CHORES)))


def test_a_resumed_request_waits_for_a_worker_with_its_adapter() -> None:
    """A router that has just begun may see other workers first."""
    core = core_of("slack", ONE)
    actions = tell(core, call(WANTS_RED, session=1))
    assert not of_kind(actions, Reject)
    assert not of_kind(actions, Enqueue)
    tell(core, WorkerJoined(HAS_RED, WorkerLoad(free_blocks=HAS_RED.num_blocks), COST))
    (enqueued,) = of_kind(tell(core, TimerFired(Timer(TimerKind.CHORES))), Enqueue)
    assert isinstance(enqueued, Enqueue)
    assert enqueued.entry.adapter == RED
