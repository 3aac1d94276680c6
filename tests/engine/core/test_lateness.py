"""A late token keeps its line, unless it is hopeless."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.due_times import HOPELESS_GAPS, least_slack, next_line

TPOT = st.floats(0.001, 2.0)
TIME = st.floats(0.0, 100.0)


def due_after(due_s: float, tpot_s: float, now_s: float) -> float:
    tpot = np.array([tpot_s])
    start, num_gaps = next_line(np.array([due_s]), np.array([0]), tpot, now_s)
    return float((start + num_gaps * tpot)[0])


@given(st.lists(st.tuples(TIME, TPOT, st.floats(-10.0, HOPELESS_GAPS - 0.01)), min_size=1, max_size=8))
def test_a_token_with_hope_keeps_its_line_however_late(rows: list[tuple[float, float, float]]) -> None:
    for due_s, tpot_s, late_gaps in rows:
        now_s = due_s + late_gaps * tpot_s
        assert due_after(due_s, tpot_s, now_s) == pytest.approx(due_s + tpot_s)


@given(TIME, TPOT, st.floats(HOPELESS_GAPS + 0.01, 100.0))
def test_a_hopeless_token_starts_a_line_of_its_own(due_s: float, tpot_s: float, late_gaps: float) -> None:
    now_s = due_s + late_gaps * tpot_s
    assert due_after(due_s, tpot_s, now_s) == pytest.approx(now_s + tpot_s)


@given(TPOT, st.lists(st.floats(0.0, 2.0 + HOPELESS_GAPS), min_size=1, max_size=30))
def test_on_its_line_at_the_end_a_row_has_kept_its_pace(tpot_s: float, gaps: list[float]) -> None:
    """Whoever was late on the way and is in time at the last token kept the mean that was promised."""
    first_s = now_s = 10.0
    due_s, restarted = first_s + tpot_s, False
    for gap in gaps:
        now_s += gap * tpot_s
        in_time = now_s <= due_s
        restarted |= now_s - due_s > HOPELESS_GAPS * tpot_s
        due_s = due_after(due_s, tpot_s, now_s)
    mean_s = (now_s - first_s) / len(gaps)
    if not restarted:
        assert in_time == (mean_s <= tpot_s) or mean_s == pytest.approx(tpot_s)


def test_a_line_starts_with_the_token_and_ends_only_with_a_pace() -> None:
    assert due_after(-math.inf, 0.5, 0.1) == pytest.approx(0.6)
    assert due_after(math.inf, 0.0, 0.1) == math.inf


@given(st.lists(st.tuples(TIME, TPOT), max_size=6), TIME)
def test_slack_is_none_while_a_late_token_may_catch_up(rows: list[tuple[float, float]], now_s: float) -> None:
    due = np.array([due_s for due_s, _ in rows])
    hope = np.array([HOPELESS_GAPS * tpot_s for _, tpot_s in rows])
    hopeful = [max(0.0, at - now_s) for at, entry in zip(due, hope, strict=True) if at >= now_s - entry]
    assert least_slack(due, hope, now_s) == pytest.approx(min(hopeful, default=math.inf))
