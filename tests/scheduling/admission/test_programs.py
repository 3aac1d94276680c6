"""The rest of a program as it is expected, and the due time of a call."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.admission.programs import (
    MAX_CALLS,
    MAX_PROGRAMS,
    MAX_TENANTS,
    NOTHING,
    PACE,
    QUIET,
    Programs,
    Rest,
    goal_of,
)
from scheduling.request import MAX_SLO_MS, Program, Slo

MS = st.none() | st.integers(1, 90_000)
SLOS = st.builds(Slo, ttft_ms=MS, tpot_ms=MS, itl_ms=MS, allow_at_risk=st.booleans())
SECONDS = st.floats(0, 1e6)
RESTS = st.builds(Rest, output_s=SECONDS, later_s=SECONDS)
DEADLINES = st.integers(0, 86_400_000)
DAY_MS = 86_400_000
RUN_S, FIRST_S, THINK_S = 2.0, 0.5, 3.0


def play(programs: Programs, name: str, num_calls: int, begin_s: float = 0.0, *, tenant: str = "t") -> float:
    """Play one program, whose calls and pauses all take the same time; return when its last call ends."""
    now = begin_s
    for number in range(num_calls):
        at = now + THINK_S if number else now
        now = at + RUN_S
        programs.call_ended(
            tenant, Program(name, DAY_MS), received_at=at, dispatched_at=at, first_at=at + FIRST_S, now=now
        )
    return now


def play_all(programs: Programs, lengths: Sequence[int], begin_s: float = 0.0) -> float:
    """Play programs one after another, so far apart that each is known to have ended."""
    now = begin_s
    for number, num_calls in enumerate(lengths):
        now = play(programs, f"{begin_s} {number}", num_calls, now) + 2 * QUIET * (THINK_S + RUN_S)
    return now


@given(SLOS, DEADLINES, RESTS, st.sampled_from([0.0, 0.0001, 0.005, 2.0]))
def test_a_stated_latency_is_never_loosened_and_a_stated_pace_stays(
    slo: Slo, deadline_ms: int, rest: Rest, step_s: float
) -> None:
    goal = goal_of(slo, Program("p", deadline_ms), rest, step_s)
    assert goal.ttft_ms is not None
    assert 1 <= goal.ttft_ms <= (MAX_SLO_MS if slo.ttft_ms is None else slo.ttft_ms)
    assert (goal.itl_ms, goal.slo_class) == (slo.itl_ms, slo.slo_class)
    if slo.pace_ms is not None or step_s == 0:
        assert goal.tpot_ms == slo.tpot_ms
    else:
        assert goal.tpot_ms == max(1, round(1000 * PACE * step_s))
    assert goal.allow_at_risk == (slo.allow_at_risk or not slo.is_stated)


@given(SLOS, DEADLINES, DEADLINES, RESTS, SECONDS)
def test_less_time_or_more_to_do_never_makes_a_call_due_later(
    slo: Slo, one_ms: int, other_ms: int, rest: Rest, more_s: float
) -> None:
    less_ms, most_ms = sorted((one_ms, other_ms))
    longer = Rest(rest.output_s, rest.later_s + more_s)
    due = goal_of(slo, Program("p", most_ms), rest, 0.0).ttft_ms
    assert due is not None
    for program, left in ((Program("p", less_ms), rest), (Program("p", most_ms), longer)):
        goal = goal_of(slo, program, left, 0.0)
        assert goal.ttft_ms is not None
        assert goal.ttft_ms <= due


def test_the_deadline_less_output_and_later_calls_is_the_slack() -> None:
    program = Program("p", 60_000)
    assert goal_of(Slo(), program, Rest(output_s=2.0, later_s=18.5), 0.0).ttft_ms == 39_500
    assert goal_of(Slo(ttft_ms=400), program, NOTHING, 0.0) == Slo(ttft_ms=400)
    assert goal_of(Slo(itl_ms=9), program, NOTHING, 1.0) == Slo(ttft_ms=60_000, itl_ms=9)


def test_an_unknown_tenant_is_expected_to_do_nothing_more() -> None:
    assert Programs().rest("t", "p") == NOTHING


@pytest.mark.parametrize("num_calls", [1, 2, 3, MAX_CALLS - 1])
def test_programs_of_one_length_are_expected_to_have_that_length(num_calls: int) -> None:
    programs = Programs()
    begin_s = play_all(programs, [num_calls] * 20)
    for made in range(num_calls):
        play(programs, "new", made, begin_s)
        rest = programs.rest("t", "new" if made else "unknown")
        left = num_calls - 1 - made
        assert rest.output_s == pytest.approx(RUN_S - FIRST_S)
        think_s = THINK_S if num_calls > 1 else 0.0
        assert rest.later_s == pytest.approx(left * (think_s + RUN_S))
        programs = Programs()
        begin_s = play_all(programs, [num_calls] * 20)


def test_a_program_that_has_gone_on_has_more_left() -> None:
    programs = Programs()
    now = play_all(programs, [2, 2, 2, 8] * 8)
    first = programs.rest("t", "p").later_s
    play(programs, "p", 2, now)
    assert programs.rest("t", "p").later_s > first > 0


def test_nothing_is_learnt_where_a_deadline_cut_a_program_off() -> None:
    programs = Programs()
    now = play_all(programs, [3] * 10)
    expected = programs.rest("t", "unknown")
    for number in range(20):
        program = Program(f"cut {number}", round(1000 * (RUN_S + 1)))
        programs.call_ended(
            "t", program, received_at=now, dispatched_at=now, first_at=now + FIRST_S, now=now + RUN_S
        )
        now += 100
    assert programs.rest("t", "unknown") == expected


def test_a_call_beside_another_counts_but_not_as_thinking() -> None:
    programs = Programs()
    play_all(programs, [2] * 4)
    before = programs.rest("t", "p")
    at = 1e6
    for _ in range(2):
        programs.call_ended(
            "t", Program("both", 1), received_at=at, dispatched_at=at, first_at=at + FIRST_S, now=at + RUN_S
        )
    assert before.later_s == pytest.approx(THINK_S + RUN_S)
    assert programs.rest("t", "p").later_s == pytest.approx(before.later_s)


def test_tenants_know_nothing_of_each_other() -> None:
    programs = Programs()
    play(programs, "p", 5, tenant="one")
    assert programs.rest("other", "p") == NOTHING


CALLS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 400), st.integers(0, 100_000), *[st.floats(0, 50)] * 4),
    max_size=200,
)


@given(CALLS)
def test_whatever_comes_expectations_are_finite_and_memory_is_bounded(
    calls: list[tuple[str, int, int, float, float, float, float]],
) -> None:
    programs, now = Programs(), 0.0
    for tenant, name, deadline_ms, gap, wait, first, output in calls:
        received = now
        now += gap + wait + first + output
        programs.call_ended(
            tenant, Program(str(name), deadline_ms), received_at=received, dispatched_at=received + wait,
            first_at=received + wait + first, now=now,
        )  # fmt: skip
        rest = programs.rest(tenant, str(name))
        assert 0 <= rest.output_s < math.inf
        assert 0 <= rest.later_s < math.inf


def test_many_tenants_and_many_programs_are_forgotten() -> None:
    programs = Programs()
    for number in range(2 * MAX_PROGRAMS):
        play(programs, str(number), 1)
    for number in range(2 * MAX_TENANTS):
        play(programs, "p", 2, tenant=str(number))
    assert programs.rest("t", "p") == NOTHING
    assert len(programs._tenants) == MAX_TENANTS
    programs = Programs()
    for number in range(2 * MAX_PROGRAMS):
        play(programs, str(number), 1)
    assert len(programs._tenants["t"].open) == MAX_PROGRAMS
