"""When tokens are due, recounted token by token."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.due_times import MEAN_GAPS, Due, DueTimes, advance, after_first_token, least_slack

GAPS = st.lists(st.floats(0.001, 5.0), min_size=1, max_size=20)
MS = st.one_of(st.none(), st.integers(1, 3000))


@given(MS, MS, GAPS)
def test_due_times_follow_the_promises(tpot_ms: int | None, itl_ms: int | None, gaps: list[float]) -> None:
    table = DueTimes(1)
    table.set(0, tpot_ms, itl_ms, Due())
    now = 100.0
    table.advance(0, 1, now)
    tpot, itl = (math.inf if ms is None else ms / 1000 for ms in (tpot_ms, itl_ms))
    mean_due = now + tpot
    for gap in gaps:
        assert table.next_due[0] == pytest.approx(min(mean_due, now + itl))
        now += gap
        # A token in time leaves the schedule as it is; a late one restarts it.
        mean_due = mean_due + tpot if now <= mean_due else now + tpot
        table.advance(0, 1, now)


@given(st.lists(st.tuples(MS, MS, st.floats(0, 20)), max_size=8), st.floats(0, 20))
def test_slack_is_the_least_of_those_not_late_and_never_negative(
    rows: list[tuple[int | None, int | None, float]], now: float
) -> None:
    table = DueTimes(8)
    for row, (tpot_ms, itl_ms, first_token_s) in enumerate(rows):
        table.set(row, tpot_ms, itl_ms, after_first_token(tpot_ms, itl_ms, first_token_s))
    due = table.next_due[: len(rows)].tolist()
    expected = min((one - now for one in due if one >= now), default=math.inf)
    assert table.slack_s(len(rows), now) == pytest.approx(expected)
    assert table.slack_s(len(rows), now) >= 0
    limits = [min(i or math.inf, MEAN_GAPS * (t or math.inf)) / 1000 for t, i, _ in rows]
    assert table.gap_limit_s(len(rows)) == pytest.approx(min(limits, default=math.inf))


@given(st.integers(1, 2000), st.floats(1.0, 50.0))
def test_a_hopeless_choice_leaves_others_at_least_one_gap_after_each_token(
    tpot_ms: int, late_s: float
) -> None:
    tpot = np.array([tpot_ms / 1000])
    mean_due, next_due = advance(np.array([10.0]), tpot, np.array([math.inf]), 10.0 + late_s)
    assert least_slack(next_due, 10.0 + late_s) == pytest.approx(tpot_ms / 1000)
    assert mean_due.tolist() == next_due.tolist()


def test_without_a_promise_there_is_all_the_time() -> None:
    table = DueTimes(2)
    table.set(0, None, None, Due())
    table.advance(0, 1, 5.0)
    assert table.slack_s(1, 9.0) == table.gap_limit_s(1) == math.inf
    assert table.slack_s(0, 9.0) == table.gap_limit_s(0) == math.inf


def test_times_are_kept_by_a_choice_that_leaves_and_joins_again() -> None:
    table = DueTimes(2)
    table.set(0, 100, 150, after_first_token(100, 150, 7.0))
    table.set(1, 100, 150, table.get(0))
    assert table.get(1) == table.get(0) == Due(7.1, 7.1)
