"""Token buckets: over any time nobody gets more than the rate and one burst, and waiting as told helps."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.admission.budgets import UNLIMITED, Budget, Levels, Rate, take

rates = st.builds(Rate, st.floats(0.1, 1000), st.floats(1, 1000))
costs = st.integers(0, 2000)


@given(rates, st.lists(st.tuples(st.integers(0, 5000), costs), max_size=40))
def test_what_is_taken_never_exceeds_the_rate_and_one_burst(rate: Rate, asked: list[tuple[int, int]]) -> None:
    now, taken, before = 0, 0, None
    for pause_ms, cost in asked:
        now += pause_ms
        answer = take(Budget(tokens=rate), before, 0, cost, now)
        if answer.wait_ms == 0:
            # Only what is larger than the bucket leaves a debt, and only from a full one.
            assert answer.left.tokens >= min(0, rate.burst - cost) - 1e-6
            taken, before = taken + cost, answer.left
            assert taken <= rate.burst + now * rate.per_s / 1000 + max(0, cost - rate.burst) + 1e-6


@given(rates, rates, st.lists(st.tuples(st.integers(0, 5000), costs, costs), min_size=1, max_size=20))
def test_who_waits_as_told_is_let_in_and_not_a_millisecond_before(
    requests: Rate, tokens: Rate, asked: list[tuple[int, int, int]]
) -> None:
    budget, now, before = Budget(requests, tokens), 0, None
    for pause_ms, count, cost in asked:
        now += pause_ms
        answer = take(budget, before, count, cost, now)
        if answer.wait_ms == 0:
            before = answer.left
            continue
        later = now + answer.wait_ms
        assert take(budget, before, count, cost, later + 1).wait_ms == 0
        # A sum's last bit may be worth a millisecond.
        assert take(budget, before, count, cost, later - 2).wait_ms > 0 or answer.wait_ms <= 2


def test_without_a_limit_nothing_is_counted() -> None:
    assert take(UNLIMITED, None, 10**9, 10**9, 0).wait_ms == 0
    assert UNLIMITED.is_unlimited
    assert not Budget(requests=Rate(1, 1)).is_unlimited


def test_a_clock_that_goes_back_gives_nothing() -> None:
    budget = Budget(tokens=Rate(10, 10))
    assert take(budget, Levels(0, 0, 5000), 0, 1, 1000).wait_ms == 100


@pytest.mark.parametrize("number", [0, -1, math.inf, math.nan])
def test_a_rate_is_a_number_over_zero(number: float) -> None:
    with pytest.raises(ValueError, match="per_s"):
        Rate(number, 1)
    with pytest.raises(ValueError, match="burst"):
        Rate(1, number)
