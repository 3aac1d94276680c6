"""A call of a program is due when its program's slack says, and no promise is broken for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.core import RouterCore
from router.core.model.actions import Action, Dequeue, Enqueue, Reject, TellAccepted
from router.core.model.events import Enqueued
from router.errors import Refused
from scheduling.admission.backlog import DEFAULT_TTFT_MS
from scheduling.admission.programs import PACE
from scheduling.prediction import lone_step_s
from scheduling.request import Program, Slo, SloClass
from tests.router.core.asking import core_with
from tests.router.core_driver import ARRIVAL, call, core_of, tell

DEFAULT_MS = DEFAULT_TTFT_MS[SloClass.STANDARD]
MS = st.none() | st.integers(1, 60_000)
NO_SLO = Slo()
PACED = Slo(tpot_ms=5000)
"""A pace that this fleet keeps in any case."""


def ask(
    core: RouterCore, number: int, tokens: int, deadline_ms: int | None, slo: Slo = NO_SLO, ahead: int = 0
) -> list[Action]:
    """A call of a program of its own comes, behind so many tokens that wait; None: of no program."""
    program = None if deadline_ms is None else Program(f"p{number}", deadline_ms)
    event = call(ARRIVAL, prompt_token_ids=range(tokens), slo=slo, program=program)
    told = tell(core, call(event, listener=number, request_id=f"r{number}"))
    place = Enqueued(f"t/r{number}/0", 0, ahead)
    told += tell(core, place)
    if Dequeue(f"t/r{number}/0") in told and not outcomes(told):
        told += tell(core, place)
    return told


def due_in_ms(told: list[Action]) -> int:
    """Return the due time of the last entry in the queue."""
    return [action.entry.due_in_ms for action in told if isinstance(action, Enqueue)][-1]


def outcomes(told: list[Action]) -> list[Action]:
    return [action for action in told if isinstance(action, TellAccepted | Reject)]


def is_at_risk(told: list[Action]) -> bool:
    (accepted,) = outcomes(told)
    assert isinstance(accepted, TellAccepted)
    return accepted.promise.at_risk


def test_the_program_with_less_time_left_goes_first() -> None:
    core = core_with(bound=1000)
    later, sooner = ask(core, 1, 50, 60_000, PACED), ask(core, 2, 50, 20_000, PACED)
    assert (due_in_ms(later), due_in_ms(sooner)) == (60_000, 20_000)
    assert not is_at_risk(later)
    assert not is_at_risk(sooner)
    waiting = core.state.waiting
    assert waiting.head is not None
    assert waiting.head.session.request.request_id == "r2"


def test_what_programs_still_had_to_do_is_expected_of_the_next() -> None:
    core = core_with(bound=1000)
    learnt = core.state.learnt.programs
    for at in (0.0, 5.0):  # two calls of two seconds, three seconds apart
        learnt.call_ended(
            "t", Program("old", 90_000), received_at=at, dispatched_at=at, first_at=at + 0.5, now=at + 2
        )
    assert due_in_ms(ask(core, 1, 50, 60_000)) == 60_000 - 1500 - 5000


@pytest.mark.parametrize("policy", ["chunked", "jitserve"])
def test_policies_without_promises_leave_programs_out(policy: str) -> None:
    session = tell(core_of(policy), call(ARRIVAL, program=Program("p", 5)))
    entries = [action.entry for action in session if isinstance(action, Enqueue)]
    expected = tell(core_of(policy), ARRIVAL)
    assert entries == [action.entry for action in expected if isinstance(action, Enqueue)]


def test_a_call_without_a_pace_gets_a_quick_one() -> None:
    core = core_of("slack")
    ask(core, 1, 50, 60_000)
    (group,) = core.state.waiting
    lone_s = lone_step_s(core.state.capacity.capacity(None, 0.0).roomiest.cost, 50)
    assert group.session.goal.tpot_ms == max(1, round(1000 * PACE * lone_s))
    ask(core, 2, 50, 60_000, PACED)
    assert [group.session.goal.tpot_ms for group in core.state.waiting][1] == PACED.tpot_ms


def test_a_late_program_is_served_behind_others_at_risk() -> None:
    told = ask(core_with(bound=1000), 1, 100, 150)
    assert is_at_risk(told)
    assert due_in_ms(told) == DEFAULT_MS


@pytest.mark.parametrize("slo", [NO_SLO, PACED])
def test_a_program_makes_nobody_late_who_was_accepted(slo: Slo) -> None:
    core = core_with(bound=100)
    assert not is_at_risk(ask(core, 1, 50, None, Slo(ttft_ms=400)))
    told = ask(core, 2, 200, 300, slo)
    assert is_at_risk(told) is not slo.is_stated
    assert due_in_ms(told) == DEFAULT_MS


def test_an_accepted_program_is_made_late_by_nobody() -> None:
    core = core_with(bound=100)
    assert not is_at_risk(ask(core, 1, 50, 400, PACED))
    (refused,) = outcomes(ask(core, 2, 200, None, Slo(ttft_ms=300)))
    assert isinstance(refused, Reject)
    assert isinstance(refused.error, Refused)


def test_a_stated_ttft_is_promised_although_the_program_will_be_late() -> None:
    core = core_with(bound=1000)
    told = ask(core, 1, 100, 150, Slo(ttft_ms=5000))
    assert not is_at_risk(told)
    assert due_in_ms(told) == 5000
    assert core.state.counters.accepted == 1


def test_a_program_changes_no_refusal() -> None:
    for deadline_ms in (None, 0, 100, 90_000):
        told = ask(core_with(bound=1000), 1, 100, deadline_ms, Slo(ttft_ms=200))
        assert [type(action) for action in outcomes(told)] == [Reject]


def test_a_stated_ttft_stays_where_the_program_has_more_time() -> None:
    assert due_in_ms(ask(core_with(bound=0), 1, 50, 60_000, Slo(ttft_ms=400))) == 400


SLOS = st.builds(Slo, ttft_ms=MS, tpot_ms=MS, itl_ms=MS, slo_class=st.sampled_from(SloClass))


@given(st.sampled_from([0, 100, 3000]), st.integers(0, 90_000), SLOS)
def test_with_a_program_a_call_is_refused_exactly_if_it_is_without(
    bound: int, deadline_ms: int, slo: Slo
) -> None:
    with_program = ask(core_with(bound), 1, 100, deadline_ms, slo)
    without = ask(core_with(bound), 1, 100, None, slo)
    kinds = [type(action) for action in outcomes(with_program)]
    assert kinds == [type(action) for action in outcomes(without)]
    if slo.is_stated and kinds == [TellAccepted]:
        assert not is_at_risk(with_program)
