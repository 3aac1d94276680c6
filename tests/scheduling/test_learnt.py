"""Ratios and lengths are learnt and forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.learnt import ENOUGH, MAX_AGE_S, PRIOR, LearntRatios, OutputLengths


def test_before_anything_was_seen_the_prior_speaks() -> None:
    q10, q90 = LearntRatios().quantiles(0, now=0.0)
    assert (q10, q90) == (min(PRIOR), max(PRIOR))


def test_ratios_are_learnt_by_size() -> None:
    learnt = LearntRatios()
    for _ in range(ENOUGH):
        learnt.add(0, 1.0, now=0.0)
        learnt.add(5000, 3.0, now=0.0)
    assert learnt.quantiles(0, now=1.0) == (1.0, 1.0)
    assert learnt.quantiles(5000, now=1.0) == (3.0, 3.0)


def test_a_bucket_that_saw_little_asks_the_nearest_that_know() -> None:
    learnt = LearntRatios()
    for _ in range(ENOUGH):
        learnt.add(0, 3.0, now=0.0)
        learnt.add(2000, 1.0, now=0.0)
    assert learnt.quantiles(100_000, now=1.0) == (1.0, 1.0)
    assert learnt.quantiles(100, now=1.0) == (3.0, 3.0)


def test_a_bad_minute_is_forgotten_even_when_nothing_was_admitted_since() -> None:
    learnt = LearntRatios()
    for _ in range(50):
        learnt.add(0, 100.0, now=0.0)
    assert learnt.quantiles(0, now=1.0)[1] == 100.0
    assert learnt.quantiles(0, now=MAX_AGE_S + 1)[1] == max(PRIOR)


@given(st.lists(st.floats(0.01, 100), min_size=ENOUGH, max_size=60))
def test_late_quantile_covers_nine_of_ten(ratios: list[float]) -> None:
    learnt = LearntRatios()
    for ratio in ratios:
        learnt.add(0, ratio, now=0.0)
    q10, q90 = learnt.quantiles(0, now=0.0)
    assert q10 <= q90
    assert sum(ratio <= q90 for ratio in ratios) >= 0.9 * len(ratios)


def test_output_lengths_are_learnt_and_capped() -> None:
    lengths = OutputLengths()
    for _ in range(100):
        lengths.add(40)
    assert lengths.expected(1000, ignore_eos=False) == pytest.approx(40, abs=1)
    assert lengths.expected(10, ignore_eos=False) == 10
    assert lengths.expected(1000, ignore_eos=True) == 1000
