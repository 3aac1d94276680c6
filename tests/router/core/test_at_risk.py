"""A caller who allows a late answer is never refused for latency, and makes nobody else late."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.model.actions import Action, Dequeue, Enqueue, Reject, TellAccepted
from router.core.model.events import QueueWasFull
from router.errors import Refused
from scheduling.admission.admission import Cause
from scheduling.admission.backlog import DEFAULT_TTFT_MS
from scheduling.admission.shares import Standing
from scheduling.request import Slo, SloClass
from tests.router.core.asking import WITHIN_SHARE, ask, core_with
from tests.router.core_driver import ARRIVAL, ONE, call, core_of, grant, tell

MS = st.none() | st.integers(1, 400)
OVER_SHARE = Standing(counter=9000.0, least=0.0, others=1, is_over=True)


def due_in_ms(told: list[Action], number: int) -> int:
    """Return the due time of the request's last queue entry."""
    entries = [action.entry for action in told if isinstance(action, Enqueue)]
    return [entry.due_in_ms for entry in entries if entry.request_key == f"t/r{number}/0"][-1]


RISKY = st.builds(
    Slo,
    ttft_ms=MS,
    tpot_ms=MS,
    itl_ms=MS,
    slo_class=st.sampled_from(SloClass),
    allow_at_risk=st.just(value=True),
)
LOADS = st.sampled_from([0, 100, 3000])


@given(LOADS, LOADS, RISKY, st.sampled_from([WITHIN_SHARE, OVER_SHARE]))
def test_whatever_it_asks_for_of_whatever_fleet_it_is_taken(
    bound: int, ahead: int, slo: Slo, standing: Standing
) -> None:
    core = core_with(bound)
    ask(core, 1, 20, Slo(ttft_ms=50_000), ahead)
    told = ask(core, 2, 100, slo, ahead, standing)
    assert [action.listener for action in told if isinstance(action, TellAccepted)] == [2]
    assert not [action for action in told if isinstance(action, Reject)]
    (accepted,) = [action for action in told if isinstance(action, TellAccepted)]
    assert (accepted.promise.ttft_ms, accepted.promise.tpot_ms) == (slo.ttft_ms, slo.tpot_ms)


def test_a_hopeless_at_risk_request_waits_as_if_without_a_ttft() -> None:
    core = core_with(bound=1000)
    assert [action for action in ask(core, 1, 100, Slo(ttft_ms=150), 0) if isinstance(action, Reject)]
    told = ask(core, 2, 100, Slo(ttft_ms=150, allow_at_risk=True), 0)
    (accepted,) = [action for action in told if isinstance(action, TellAccepted)]
    assert accepted.promise.at_risk
    assert accepted.promise.predicted_ttft_ms > 150
    assert Dequeue("t/r2/0") in told
    assert due_in_ms(told, 2) == DEFAULT_TTFT_MS[SloClass.STANDARD]


def test_what_may_just_be_in_time_keeps_its_place() -> None:
    told = ask(core_with(bound=100), 1, 100, Slo(ttft_ms=220, allow_at_risk=True), 0)
    (accepted,) = [action for action in told if isinstance(action, TellAccepted)]
    assert accepted.promise.at_risk
    assert Dequeue("t/r1/0") not in told
    assert due_in_ms(told, 1) == 220


def test_it_waits_behind_a_promise_that_it_would_break() -> None:
    core = core_with(bound=100)
    assert not [action for action in ask(core, 1, 50, Slo(ttft_ms=400), 0) if isinstance(action, Reject)]
    hasty = Slo(ttft_ms=300)
    (refused,) = [action.error for action in ask(core, 2, 200, hasty, 0) if isinstance(action, Reject)]
    assert isinstance(refused, Refused)
    assert refused.decision.cause is Cause.OTHERS
    told = ask(core, 3, 200, replace(hasty, allow_at_risk=True), 0)
    assert not [action for action in told if isinstance(action, Reject)]
    assert due_in_ms(told, 3) > 400


@pytest.mark.parametrize("slo", [Slo(tpot_ms=1), Slo(itl_ms=1), Slo(ttft_ms=60_000, tpot_ms=1)])
def test_a_pace_that_is_not_kept_cuts_no_steps_of_others(slo: Slo) -> None:
    core = core_of("slack")
    told = ask(core, 1, 6, replace(slo, allow_at_risk=True), 0)
    (accepted,) = [action for action in told if isinstance(action, TellAccepted)]
    assert accepted.promise.at_risk
    assert accepted.promise.tpot_ms == slo.tpot_ms, "it is judged by what it asked for"
    (send,) = grant(core, 1, ONE.key)
    assert (send.spec.tpot_ms, send.spec.itl_ms) == (None, None)
    assert core.state.fleet.workers[ONE.key].paces_ms == []


def test_a_full_queue_refuses_it_too() -> None:
    event = call(ARRIVAL, slo=Slo(ttft_ms=1, allow_at_risk=True))
    told = tell(core_with(100), event, QueueWasFull("t/r1/0", 1024))
    assert [action for action in told if isinstance(action, Reject)]
