"""When tokens are due, recounted token by token."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engine.core.due_times import HOPELESS_GAPS, MEAN_GAPS, Due, DueTimes, after_first_token

ROW = np.array([0])
GAPS = st.lists(st.floats(0.001, 5.0), min_size=1, max_size=20)
MS = st.one_of(st.none(), st.integers(1, 3000))


@given(MS, MS, GAPS)
def test_due_times_follow_the_promises(tpot_ms: int | None, itl_ms: int | None, gaps: list[float]) -> None:
    table = DueTimes(1)
    table.set(0, tpot_ms, itl_ms, Due())
    now = 100.0
    table.advance(ROW, now)
    tpot, itl = (math.inf if ms is None else ms / 1000 for ms in (tpot_ms, itl_ms))
    mean_due = now + tpot
    for gap in gaps:
        assert table.next_due[0] == pytest.approx(min(mean_due, now + itl))
        now += gap
        # At the border itself rounding decides, which is another one there.
        assume(mean_due == math.inf or abs(now - mean_due - HOPELESS_GAPS * tpot) > 1e-9)
        # Only a hopelessly late token starts a schedule of its own.
        mean_due = (now if now - mean_due > HOPELESS_GAPS * tpot else mean_due) + tpot
        table.advance(ROW, now)


@given(st.lists(st.tuples(MS, MS, st.floats(0, 20)), max_size=8), st.floats(0, 20))
def test_slack_is_the_least_of_those_with_hope_and_never_negative(
    rows: list[tuple[int | None, int | None, float]], now: float
) -> None:
    table = DueTimes(8)
    for row, (tpot_ms, itl_ms, first_token_s) in enumerate(rows):
        table.set(row, tpot_ms, itl_ms, after_first_token(tpot_ms, itl_ms, first_token_s))
    due = table.next_due[: len(rows)].tolist()
    hope = [0.0 if tpot_ms is None else HOPELESS_GAPS * tpot_ms / 1000 for tpot_ms, _, _ in rows]
    slacks = [max(0.0, entry - now) for entry, late in zip(due, hope, strict=True) if entry >= now - late]
    expected = min(slacks, default=math.inf)
    assert table.slack_s(len(rows), now) == pytest.approx(expected)
    assert table.slack_s(len(rows), now) >= 0
    limits = [min(i or math.inf, MEAN_GAPS * (t or math.inf)) / 1000 for t, i, _ in rows]
    assert table.gap_limit_s(len(rows)) == pytest.approx(min(limits, default=math.inf))


@given(
    st.lists(st.tuples(MS, MS, st.floats(0, 20), st.booleans(), st.booleans()), max_size=8), st.floats(0, 20)
)
def test_slack_is_foreseen_for_rows_that_get_a_token_first(
    rows: list[tuple[int | None, int | None, float, bool, bool]], now: float
) -> None:
    foreseen, happened = DueTimes(8), DueTimes(8)
    for table in (foreseen, happened):
        for row, (tpot_ms, itl_ms, first_token_s, has_begun, _) in enumerate(rows):
            due = after_first_token(tpot_ms, itl_ms, first_token_s) if has_begun else Due()
            table.set(row, tpot_ms, itl_ms, due)
    is_pending = np.array([pending for *_, pending in rows], dtype=np.bool_)
    happened.advance(np.flatnonzero(is_pending), now)
    assert foreseen.slack_s(len(rows), now, is_pending) == happened.slack_s(len(rows), now)


@given(st.integers(1, 2000), st.floats(HOPELESS_GAPS + 1.0, 50.0))
def test_a_hopeless_choice_leaves_others_a_gap_after_each_token(tpot_ms: int, late_gaps: float) -> None:
    table = DueTimes(1)
    table.set(0, tpot_ms, None, after_first_token(tpot_ms, None, 10.0))
    now = 10.0 + (1.0 + late_gaps) * tpot_ms / 1000
    table.advance(ROW, now)
    assert table.slack_s(1, now) == pytest.approx(tpot_ms / 1000)


def test_without_a_promise_there_is_all_the_time() -> None:
    table = DueTimes(2)
    table.set(0, None, None, Due())
    table.advance(ROW, 5.0)
    assert table.slack_s(1, 9.0) == table.gap_limit_s(1) == math.inf
    assert table.slack_s(0, 9.0) == table.gap_limit_s(0) == math.inf


def test_times_are_kept_by_a_choice_that_leaves_and_joins_again() -> None:
    table = DueTimes(2)
    table.set(0, 100, 150, after_first_token(100, 150, 7.0))
    table.set(1, 100, 150, table.get(0))
    assert table.get(1) == table.get(0) == Due(7.1, 7.1)
