"""Who goes first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduling.ordering import DEFAULT_TTFT_MS, Waiter, due_in_ms, least_slack_behind
from scheduling.request import Slo, SloClass


@given(st.integers(1, 100_000), st.floats(0, 200))
def test_due_time_counts_from_arrival_and_is_never_negative(ttft_ms: int, waited_s: float) -> None:
    due = due_in_ms(Slo(ttft_ms=ttft_ms), waited_s)
    assert due == max(0, ttft_ms - round(waited_s * 1000))


def test_without_a_stated_ttft_the_class_has_a_default() -> None:
    dues = [due_in_ms(Slo(slo_class=one), 0.0) for one in SloClass]
    assert dues == [DEFAULT_TTFT_MS[one] for one in SloClass]
    assert dues == sorted(dues)


def test_only_those_behind_count() -> None:
    waiters = [
        Waiter(SloClass.INTERACTIVE, 9.0, 0.1),
        Waiter(SloClass.STANDARD, 4.0, 0.2),
        Waiter(SloClass.STANDARD, 6.0, 0.3),
        Waiter(SloClass.BATCH, 1.0, 0.4),
    ]
    assert least_slack_behind(waiters, SloClass.STANDARD, 5.0) == 0.3
    assert least_slack_behind(waiters, SloClass.BATCH, 5.0) == float("inf")
