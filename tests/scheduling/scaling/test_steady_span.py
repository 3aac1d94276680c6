"""The load is taken from as long a time as it has been steady, and from no longer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.scaling.demand import EMPTY, Slot, of_row, total
from scheduling.scaling.steady_span import SPANS, steady_span
from tests.scheduling.scaling.drawn_slots import poisson, request

CHAT, LONG = request(1700, 415), request(8000, 200, 2.0)
SEEDS = st.integers(0, 999)
RATES = st.floats(1, 40)


def times(slots: Sequence[Slot], by: float) -> list[Slot]:
    return [of_row([number * by for number in slot.row]) for slot in slots]


@given(st.lists(st.integers(0, 30), max_size=180))
def test_a_span_is_one_of_those_that_are_looked_at(counts: list[int]) -> None:
    slots = [total([CHAT] * count) for count in counts]
    assert steady_span(slots) in {*SPANS, len(slots)}
    assert steady_span(slots) <= len(slots)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=180), st.floats(0.01, 100))
def test_it_does_not_depend_on_the_size_of_the_load(counts: list[int], by: float) -> None:
    slots = [total([CHAT] * count) for count in counts]
    assert steady_span(times(slots, by)) == steady_span(slots)


@given(st.integers(1, 180), st.integers(0, 50))
def test_a_load_without_chance_is_steady_as_long_as_it_lasts(num: int, count: int) -> None:
    assert steady_span([total([CHAT] * count)] * num) == num


def test_a_steady_load_is_seldom_taken_for_one_that_changes() -> None:
    views = [poisson(rate, CHAT, 180, seed) for rate in (0.5, 3, 20) for seed in range(40)]
    assert sum(steady_span(view) < 180 for view in views) <= len(views) / 8


@pytest.mark.parametrize("factor", [2.0, 0.3])
@given(RATES, SEEDS)
@settings(max_examples=30, deadline=None)
def test_a_change_ends_the_span_within_a_minute(factor: float, rate: float, seed: int) -> None:
    before, after = poisson(rate, CHAT, 168, seed), poisson(factor * rate, CHAT, 12, seed + 1000)
    assert steady_span([*before, *after]) <= 24


@given(RATES, SEEDS)
@settings(max_examples=20, deadline=None)
def test_longer_prompts_are_a_change_as_well(rate: float, seed: int) -> None:
    before, after = poisson(rate, CHAT, 168, seed), poisson(rate, LONG, 12, seed + 1000)
    assert steady_span([*before, *after]) <= 24


def test_a_load_that_has_always_come_in_gusts_is_steady() -> None:
    gusts = [total([CHAT] * 30) if place % 4 == 0 else EMPTY for place in range(180)]
    assert steady_span(gusts) == 180
