"""Which of those that wait give up being in time: for a smaller one, by the full plan, when capacity dies."""

from __future__ import annotations

import pytest

from router.core import admit
from router.core.model.actions import (
    Action,
    AskGrants,
    ChargeTenant,
    Dequeue,
    Enqueue,
    PromiseBroken,
    RefundTenant,
    Reject,
    RequestShed,
    TellAccepted,
)
from router.core.model.events import (
    Charged,
    Enqueued,
    StoreCall,
    StoreFailed,
    Timer,
    TimerFired,
    TimerKind,
    WorkerLost,
)
from router.errors import Refused
from scheduling.admission.backlog import DEFAULT_TTFT_MS
from scheduling.admission.shares import Standing
from scheduling.request import Slo, SloClass
from tests.router.core.asking import WITHIN_SHARE, ask, core_with
from tests.router.core_driver import ARRIVAL, ONE, TWO, call, grant, tell

CHORES = TimerFired(Timer(TimerKind.CHORES))


def test_the_largest_at_risk_makes_room_for_a_smaller_newcomer() -> None:
    core = core_with(bound=100)
    risky = Slo(ttft_ms=220, allow_at_risk=True)
    (taken,) = [action for action in ask(core, 1, 100, risky, 0) if isinstance(action, TellAccepted)]
    assert taken.promise.at_risk
    firm = Slo(ttft_ms=300)
    told = ask(core, 2, 10, firm, 100)
    assert RequestShed("t/r1/0") in told
    assert_waits_behind(told)
    assert ("t", "r1") in core.state.live
    assert [action.listener for action in told if isinstance(action, TellAccepted)] == [2]


def assert_waits_behind(told: list[Action]) -> None:
    """The first request waits on like one that asked for no TTFT, and its client hears no error."""
    assert not [action for action in told if isinstance(action, Reject)]
    assert Dequeue("t/r1/0") in told
    (again,) = [
        action.entry
        for action in told
        if isinstance(action, Enqueue) and action.entry.request_key == "t/r1/0"
    ]
    assert again.due_in_ms > DEFAULT_TTFT_MS[SloClass.STANDARD] - 1000


def test_who_was_accepted_never_makes_room() -> None:
    core = core_with(bound=100)
    ask(core, 1, 100, Slo(ttft_ms=1000), 0)
    told = ask(core, 2, 10, Slo(ttft_ms=300), 100)
    (rejected,) = [action for action in told if isinstance(action, Reject)]
    assert rejected.listener == 2
    assert not [action for action in told if isinstance(action, RequestShed)]


def test_the_full_plan_demotes_at_risk_requests_that_are_late() -> None:
    core = core_with(bound=100)
    ask(core, 1, 100, Slo(ttft_ms=220, allow_at_risk=True), 0)
    assert not [action for action in tell(core, CHORES, now=1.05) if isinstance(action, RequestShed)]
    told = tell(core, CHORES, now=1.2)
    assert RequestShed("t/r1/0") in told
    assert_waits_behind(told)
    assert ("t", "r1") in core.state.live
    assert not [action for action in tell(core, CHORES, now=1.3) if isinstance(action, RequestShed)], (
        "only once"
    )


def test_lost_capacity_gives_up_promises_that_cannot_be_kept() -> None:
    core = core_with(bound=100)
    ask(core, 1, 100, Slo(ttft_ms=500), 0)
    told = ask(core, 2, 10, Slo(ttft_ms=600), 100)
    assert not [action for action in told if isinstance(action, PromiseBroken)]
    told = tell(core, WorkerLost(TWO.key, "killed"), now=1.38)
    assert [action.request_key for action in told if isinstance(action, PromiseBroken)] == ["t/r1/0"]
    behind = [
        action.entry
        for action in told
        if isinstance(action, Enqueue) and action.entry.request_key == "t/r1/0"
    ]
    assert behind[-1].due_in_ms > 100_000
    assert Dequeue("t/r1/0") in told
    assert ("t", "r1") in core.state.live


def test_full_plans_are_made_at_most_twenty_times_a_second() -> None:
    core = core_with(bound=100)
    ask(core, 1, 100, Slo(ttft_ms=220, allow_at_risk=True), 0)
    tell(core, CHORES, now=1.01)
    assert core.state.planned_at == 1.01
    tell(core, CHORES, now=1.05)
    assert core.state.planned_at == 1.01
    tell(core, CHORES, now=1.07)
    assert core.state.planned_at == 1.07


def test_full_plans_are_made_less_often_where_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    core = core_with(bound=100)
    ask(core, 1, 100, Slo(ttft_ms=220, allow_at_risk=True), 0)
    monkeypatch.setattr(admit, "PLANNED_PER_S", 10 * len(core.state.waiting))
    tell(core, CHORES, now=1.01)
    assert core.state.planned_at == 1.01
    tell(core, CHORES, now=1.07)
    assert core.state.planned_at == 1.01
    tell(core, CHORES, now=1.12)
    assert core.state.planned_at == 1.12


def test_a_tenant_over_its_share_is_refused_a_promise() -> None:
    over = Standing(counter=9000.0, least=0.0, others=1, is_over=True)
    asked = Slo(ttft_ms=50_000)
    told = ask(core_with(bound=100), 1, 10, asked, 100, over)
    (rejected,) = [action for action in told if isinstance(action, Reject)]
    assert isinstance(rejected.error, Refused)
    within = ask(core_with(bound=100), 1, 10, asked, 100)
    assert [action for action in within if isinstance(action, TellAccepted)]


def test_a_tenant_over_its_share_that_asks_for_nothing_is_put_behind() -> None:
    over = Standing(counter=9000.0, least=0.0, others=1, is_over=True)
    told = ask(core_with(bound=100), 1, 10, Slo(), 100, over)
    assert [action for action in told if isinstance(action, TellAccepted)]
    first, again = (action.entry.due_in_ms for action in told if isinstance(action, Enqueue))
    assert again > first
    assert Dequeue("t/r1/0") in told


def test_the_refused_get_charges_back_and_idle_fleets_charge_none() -> None:
    core = core_with(bound=100)
    told = ask(core, 1, 100, Slo(ttft_ms=100), 100)
    (charged,) = [action for action in told if isinstance(action, ChargeTenant)]
    assert RefundTenant(charged.request_key, "t", charged.tokens) in told
    assert not [action for action in ask(core, 2, 5, Slo(), 0) if isinstance(action, ChargeTenant)]


def test_a_charge_without_an_answer_comes_back_too() -> None:
    """It may have been executed: the store knows, and refunds it only then."""
    core = core_with(bound=100)
    event = call(ARRIVAL, prompt_token_ids=range(100), slo=Slo(ttft_ms=100), request_id="r1", listener=1)
    told = tell(core, event, Enqueued("t/r1/0", 1, 100))
    (charged,) = [action for action in told if isinstance(action, ChargeTenant)]
    told = tell(core, StoreFailed(StoreCall.CHARGE, charged.request_key, "no answer"))
    assert [action for action in told if isinstance(action, Reject)]
    assert RefundTenant(charged.request_key, "t", charged.tokens) in told


def test_batch_is_let_through_once_it_is_owed_a_prompt() -> None:
    core = core_with(bound=0)
    ask(core, 1, 10, Slo(slo_class=SloClass.BATCH), 0)
    core.state.batch_floor.owed_tokens = 9.9
    ask(core, 2, 6, Slo(slo_class=SloClass.INTERACTIVE), 0)
    grant(core, 2, ONE.key)
    promoted = [group.key for group in core.state.groups.values() if group.is_promoted]
    assert promoted == ["t/r1/0"]
    assert core.state.waiting.head_of(SloClass.BATCH) is core.state.groups["t/r1/0"]


def test_a_newcomer_refused_for_what_waits_has_it_granted() -> None:
    """It may all be of a router that died. Where nobody waits any more, nobody else would ask."""
    core = core_with(bound=0)
    told = ask(core, 1, 10, Slo(ttft_ms=300), 100_000)
    assert [action for action in told if isinstance(action, Reject)]
    (asked,) = [action for action in told if isinstance(action, AskGrants)]
    assert asked.worker.max_grants > 1


def test_a_newcomer_refused_for_this_routers_own_changes_nothing() -> None:
    core = core_with(bound=0)
    event = call(ARRIVAL, prompt_token_ids=range(10), slo=Slo(ttft_ms=300))
    tell(core, call(event, listener=1, request_id="judged"), call(event, listener=2, request_id="refused"))
    told = tell(core, Enqueued("t/refused/0", 1, 100_000))
    told += tell(core, Charged("t/refused/0", WITHIN_SHARE))
    assert [action for action in told if isinstance(action, Reject)]
    assert not [action for action in told if isinstance(action, AskGrants)]
