"""A grant becomes a lease, or all that it holds is returned."""

from __future__ import annotations

from dataclasses import replace

from router.core.core import RouterCore
from router.core.model.actions import Action, Dequeue, ReleaseCredit, ReleaseLease, SendReceive, Settle
from router.core.model.events import (
    CancelAsked,
    Granted,
    QueueSeen,
    SettleAnswered,
    StoreCall,
    StoreFailed,
    Timer,
    TimerFired,
    TimerKind,
)
from runtime.state.records import DecodeRoom, Settled
from scheduling.placement import Placement
from tests.router.core_driver import ARRIVAL, ONE, TWO, arrive, call, core_of, tell

PREFILL = replace(ONE, worker_id="p1", role="prefill", address="p1:1")
KEY = "t/r1/0"
ON_TWO = Granted(KEY, PREFILL.key, TWO.key)
"""Both decode workers are as good, so a router would take the first."""
GIVEN_BACK = [ReleaseCredit(KEY, PREFILL.key), ReleaseLease(KEY, TWO.key), Dequeue(KEY)]


def waiting() -> RouterCore:
    """One request waits for its grant."""
    core = core_of("slack", PREFILL, ONE, TWO, placement=Placement.DISAGGREGATED)
    arrive(core, 1)
    return core


def rooms_asked(actions: list[Action]) -> tuple[DecodeRoom, ...]:
    (settle,) = [action for action in actions if isinstance(action, Settle)]
    return settle.decoders


def test_the_grant_s_own_room_is_asked_for_second() -> None:
    asked = rooms_asked(tell(waiting(), ON_TWO))
    assert [room.key for room in asked] == [ONE.key, TWO.key]
    assert all(room.num_blocks == 64 for room in asked)


def test_a_worker_is_asked_once() -> None:
    asked = rooms_asked(tell(waiting(), Granted(KEY, PREFILL.key, ONE.key)))
    assert [room.key for room in asked] == [ONE.key]


def test_nothing_is_leased_on_a_worker_that_is_gone() -> None:
    asked = rooms_asked(tell(waiting(), Granted(KEY, PREFILL.key, "gone:1")))
    assert asked[1] == DecodeRoom("gone:1", 0, 0)


def test_a_request_runs_where_its_lease_is() -> None:
    core = waiting()
    actions = tell(core, ON_TWO, SettleAnswered(KEY, PREFILL.key, TWO.key, Settled.OK))
    assert [action.worker_key for action in actions if isinstance(action, SendReceive)] == [TWO.key]
    actions = tell(core, CancelAsked("t", "r1"))
    assert [action for action in actions if isinstance(action, ReleaseLease)] == [ReleaseLease(KEY, TWO.key)]


def test_a_grant_for_what_has_ended_is_given_back() -> None:
    core = waiting()
    tell(core, CancelAsked("t", "r1"))
    assert tell(core, ON_TWO) == GIVEN_BACK


def test_a_grant_that_came_before_the_place_is_given_back_with_it() -> None:
    core = core_of("slack", PREFILL, ONE, TWO, placement=Placement.DISAGGREGATED)
    tell(core, call(ARRIVAL, request_id="r1"), ON_TWO)
    actions = tell(core, CancelAsked("t", "r1"))
    assert [action for action in actions if action in GIVEN_BACK] == GIVEN_BACK


def test_a_grant_whose_worker_is_gone_is_given_back() -> None:
    grant = replace(ON_TWO, worker_key="gone:1")
    actions = tell(waiting(), grant)
    assert actions[:3] == [ReleaseCredit(KEY, "gone:1"), *GIVEN_BACK[1:]]


def test_an_early_grant_is_given_back_with_a_place_that_failed() -> None:
    core = core_of("slack", PREFILL, ONE, TWO, placement=Placement.DISAGGREGATED)
    arrive(core, 1)
    tell(core, StoreFailed(StoreCall.ENQUEUE, KEY, "away"), QueueSeen(0, 0))
    tell(core, TimerFired(Timer(TimerKind.CHORES)), ON_TWO)
    actions = tell(core, StoreFailed(StoreCall.ENQUEUE, KEY, "away"))
    assert [action for action in actions if action in GIVEN_BACK] == GIVEN_BACK


def test_a_place_that_was_asked_for_too_late_is_given_up() -> None:
    """It runs already: a call for its place that had failed was executed after all."""
    core = waiting()
    tell(core, ON_TWO, SettleAnswered(KEY, PREFILL.key, TWO.key, Settled.OK))
    assert Dequeue(KEY) in tell(core, ON_TWO)
