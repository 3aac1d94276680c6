"""A prompt's first token comes from the lane that has it soonest, behind the queue."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.cost_model import CostModel
from scheduling.prediction import Lane, PrefillSpeed, PrefillView, RequestCost, level_s, soonest

waits, rates, owns = st.floats(0, 10), st.floats(100, 50_000), st.floats(0.001, 10)
fleets = st.lists(st.tuples(waits, rates, owns), min_size=1, max_size=6)
ahead = st.integers(0, 1_000_000)

PROMPT = 100

Fleet = Sequence[tuple[float, float, float]]


def lanes_of(fleet: Fleet) -> list[Lane]:
    return [
        Lane(str(place), wait_s, speed_of(rate, own_s)) for place, (wait_s, rate, own_s) in enumerate(fleet)
    ]


def speed_of(rate: float, own_s: float) -> PrefillSpeed:
    """A worker that computes any prompt in one step, which takes this long."""
    cost = CostModel((own_s, 0.0, 0.0, 0.0, 0.0, 0.0), 0.0)
    return PrefillSpeed(PrefillView(cost, PROMPT), PROMPT, own_s, rate)


def first_token(fleet: Fleet, tokens: int) -> tuple[float, float]:
    quickest = speed_of(1.0, min(own_s for _, _, own_s in fleet))
    return soonest(RequestCost(PROMPT, 0, 1, 1), tokens, lanes_of(fleet), {}, quickest)


@given(fleets, ahead)
def test_the_queue_fills_the_lanes_to_its_level(fleet: Fleet, tokens: int) -> None:
    level = level_s(lanes_of(fleet), tokens)
    filled = sum(rate * max(0.0, level - wait_s) for wait_s, rate, _ in fleet)
    assert filled == pytest.approx(tokens, rel=1e-6, abs=1e-3)


@given(fleets, ahead)
def test_no_lane_has_the_first_token_sooner(fleet: Fleet, tokens: int) -> None:
    level = level_s(lanes_of(fleet), tokens)
    earliest = min(max(wait_s, level) + own_s for wait_s, _, own_s in fleet)
    assert sum(first_token(fleet, tokens)) == pytest.approx(earliest, rel=1e-12)


@given(fleets, ahead, st.integers(1, 10_000))
def test_more_ahead_is_never_sooner(fleet: Fleet, tokens: int, more: int) -> None:
    assert sum(first_token(fleet, tokens + more)) >= sum(first_token(fleet, tokens)) - 1e-9


@given(fleets, ahead, st.tuples(waits, rates, owns))
def test_another_lane_is_never_later(fleet: Fleet, tokens: int, another: tuple[float, float, float]) -> None:
    assert sum(first_token([*fleet, another], tokens)) <= sum(first_token(fleet, tokens)) + 1e-9


def test_an_idle_lane_owes_nothing_to_a_busy_one() -> None:
    fleet = [(0.0, 1000.0, 0.3), (5.0, 1000.0, 0.1)]
    assert first_token(fleet, 0) == (0.0, 0.3)
    assert first_token(fleet, 1000) == (1.0, 0.3)
