"""The backlog's sums, and who is harmed by whom."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.admission.backlog import LEAST_WIDTH_S, WIDTH_SHARE, Backlog, Pace, Stake, Waiting
from scheduling.request import SloClass

waiting = st.builds(
    Waiting,
    key=st.just("r"),
    slo_class=st.sampled_from(SloClass),
    due_at=st.floats(-5, 50),
    tokens=st.integers(1, 1000),
    stake=st.sampled_from(Stake),
)
crowds = st.lists(waiting, max_size=30)


def backlog_of(crowd: list[Waiting]) -> Backlog:
    backlog = Backlog()
    for member in crowd:
        backlog.add(member, 0.0)
    return backlog


@given(crowds, st.data())
def test_sums_are_those_of_who_is_left_and_never_negative(crowd: list[Waiting], data: st.DataObject) -> None:
    backlog = backlog_of(crowd)
    left = list(crowd)
    for entry in data.draw(st.permutations(crowd)):
        backlog.remove(entry)
        left.remove(entry)
        assert backlog.tokens == sum(other.tokens for other in left)
        assert sum(map(backlog.requests_of, SloClass)) == len(left)
        for slo_class in SloClass:
            up_to = sum(other.tokens for other in left if other.slo_class <= slo_class)
            assert backlog.tokens_before(slo_class, math.inf) == up_to


@given(crowds, st.sampled_from(SloClass), st.floats(-5, 50))
def test_work_before_is_of_higher_classes_and_earlier_due_times(
    crowd: list[Waiting], slo_class: SloClass, due_at: float
) -> None:
    before = backlog_of(crowd).tokens_before(slo_class, due_at)
    width_s = max(LEAST_WIDTH_S, 50 * WIDTH_SHARE)
    higher = sum(member.tokens for member in crowd if member.slo_class < slo_class)
    own = [member for member in crowd if member.slo_class == slo_class]
    assert before >= higher + sum(entry.tokens for entry in own if entry.due_at <= due_at)
    assert before <= higher + sum(entry.tokens for entry in own if entry.due_at <= due_at + width_s)


@given(crowds, waiting)
def test_whoever_goes_last_harms_nobody(crowd: list[Waiting], one: Waiting) -> None:
    last = max([one.due_at, *(other.due_at for other in crowd)])
    pace = Pace(now=0.0, start_tokens=0, rate=100.0)
    backlog = backlog_of(crowd)
    assert backlog.harm_s(SloClass.BATCH, last, one.tokens, pace, waits=False) == 0


def test_harm_is_by_how_much_a_promise_behind_would_be_missed() -> None:
    backlog = backlog_of([Waiting("r", SloClass.STANDARD, 2.0, 100, Stake.ACCEPTED)])
    pace = Pace(now=0.0, start_tokens=50, rate=100.0)
    assert backlog.harm_s(SloClass.STANDARD, 1.0, 40, pace, waits=False) == 0
    assert backlog.harm_s(SloClass.STANDARD, 1.0, 150, pace, waits=False) == pytest.approx(1.0)
    assert backlog.harm_s(SloClass.STANDARD, 9.0, 150, pace, waits=False) == 0
    assert backlog.harm_s(SloClass.INTERACTIVE, 9.0, 150, pace, waits=False) == pytest.approx(1.0)


def test_what_is_late_anyway_or_was_promised_nothing_is_not_harmed() -> None:
    pace = Pace(now=0.0, start_tokens=0, rate=100.0)
    late = backlog_of([Waiting("r", SloClass.STANDARD, 2.0, 300, Stake.ACCEPTED)])
    assert late.harm_s(SloClass.INTERACTIVE, 1.0, 100, pace, waits=False) == 0
    careless = backlog_of([Waiting("r", SloClass.STANDARD, 2.0, 150, Stake.NONE)])
    assert careless.harm_s(SloClass.INTERACTIVE, 1.0, 100, pace, waits=False) == 0


def test_a_newcomer_that_waits_already_is_judged_as_one_that_does_not() -> None:
    pace = Pace(now=0.0, start_tokens=0, rate=100.0)
    behind = Waiting("r", SloClass.STANDARD, 2.0, 150, Stake.ACCEPTED)
    own = Waiting("r", SloClass.STANDARD, 1.0, 100, Stake.NONE)
    asked = backlog_of([behind]).harm_s(own.slo_class, own.due_at, own.tokens, pace, waits=False)
    assert backlog_of([behind, own]).harm_s(own.slo_class, own.due_at, own.tokens, pace) == pytest.approx(
        asked
    )


def test_however_many_wait_there_are_some_hundred_buckets() -> None:
    backlog, slo_class = Backlog(), SloClass.INTERACTIVE
    due_times = [number * 0.01 + number * 7919 % 6000 / 10 for number in range(20_000)]
    for number, due_at in enumerate(due_times):
        backlog.add(Waiting(f"r{number}", slo_class, due_at, 1, Stake.ACCEPTED), number * 0.01)
    # Whoever is in one bucket has the same work before it.
    assert len({backlog.tokens_before(slo_class, due_at) for due_at in due_times}) < 500
