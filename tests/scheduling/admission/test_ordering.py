"""Requests go in the order of their policy."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduling.admission.backlog import DEFAULT_TTFT_MS, due_at, due_in_ms, rank
from scheduling.policies.policy import Order
from scheduling.request import Slo, SloClass


@given(st.integers(1, 100_000), st.floats(0, 200))
def test_due_time_counts_from_arrival_and_is_never_negative(ttft_ms: int, waited_s: float) -> None:
    due = due_in_ms(Slo(ttft_ms=ttft_ms), waited_s)
    assert due == max(0, ttft_ms - round(waited_s * 1000))


def test_without_a_stated_ttft_the_class_has_a_default() -> None:
    dues = [due_in_ms(Slo(slo_class=slo_class), 0.0) for slo_class in SloClass]
    assert dues == [DEFAULT_TTFT_MS[slo_class] for slo_class in SloClass]
    assert dues == sorted(dues)


@given(st.floats(0, 1e6), st.integers(1, 100_000), st.sampled_from(SloClass))
def test_by_when_it_is_due_does_not_depend_on_when_it_is_asked(
    received_at: float, ttft_ms: int, one: SloClass
) -> None:
    assert due_at(Slo(ttft_ms=ttft_ms), received_at) == received_at + ttft_ms / 1000
    assert due_at(Slo(slo_class=one), received_at) == received_at + DEFAULT_TTFT_MS[one] / 1000


slos = st.builds(Slo, ttft_ms=st.none() | st.integers(1, 100_000), slo_class=st.sampled_from(SloClass))


@given(slos, st.integers(0, 100), st.integers(0, 100))
def test_in_the_order_of_arrival_who_waited_longer_is_always_first(slo: Slo, one: int, other: int) -> None:
    ranks = [rank(Order.ARRIVAL, slo, float(waited_s)) for waited_s in (one, other)]
    assert (ranks[0] < ranks[1]) == (one > other)


@given(slos, slos, st.integers(0, 100))
def test_by_due_time_no_class_goes_before_a_higher_one(one: Slo, other: Slo, waited_s: int) -> None:
    if one.slo_class < other.slo_class:
        assert rank(Order.DUE, one, float(waited_s)) < rank(Order.DUE, other, 0.0)


@given(slos, slos, st.integers(0, 100), st.integers(0, 100), st.floats(0, 50), st.floats(0, 50))
def test_by_due_time_and_work_the_sum_decides_and_the_late_go_last(
    one: Slo, other: Slo, waited_s: int, others_s: int, work_s: float, others_work_s: float
) -> None:
    mine = rank(Order.DUE_AND_SHORT, one, float(waited_s), work_s)
    its = rank(Order.DUE_AND_SHORT, other, float(others_s), others_work_s)
    by_sum = due_at(one, -waited_s) + work_s - due_at(other, -others_s) - others_work_s
    if abs(by_sum) > 0.001:
        assert (mine < its) == (by_sum < 0)
    assert its < rank(Order.DUE_AND_SHORT, one, float(waited_s), work_s, late=True)


@given(slos, slos, st.integers(0, 100), st.floats(0, 50), st.floats(0, 50))
def test_by_work_a_tenth_of_a_second_outweighs_any_such_wait(
    one: Slo, other: Slo, waited_s: int, work_s: float, others_work_s: float
) -> None:
    mine = rank(Order.SHORT, one, 0.0, work_s)
    its = rank(Order.SHORT, other, float(waited_s), others_work_s)
    if others_work_s - work_s > 0.1:
        assert mine < its
    assert its < rank(Order.SHORT, one, 0.0, work_s, late=True)
