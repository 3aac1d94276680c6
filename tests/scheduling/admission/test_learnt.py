"""Ratios and lengths are learnt and forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.admission.learnt import (
    ENOUGH,
    FIXED_AGE_S,
    FIXED_ENOUGH,
    MAX_AGE_S,
    PRIOR,
    FixedTime,
    LearntRatios,
    OutputLengths,
)

RATIOS = st.floats(0.01, 100)


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


def test_a_bad_minute_is_forgotten_even_without_admissions() -> None:
    learnt = LearntRatios()
    for _ in range(50):
        learnt.add(0, 100.0, now=0.0)
    assert learnt.quantiles(0, now=1.0)[1] == 100.0
    assert learnt.quantiles(0, now=MAX_AGE_S + 1)[1] == max(PRIOR)


@given(st.lists(st.tuples(st.sampled_from([0, 100, 5000]), RATIOS), max_size=60))
def test_after_a_pause_the_last_samples_replace_a_worse_prior(
    seen: list[tuple[int, float]],
) -> None:
    learnt = LearntRatios()
    for size, ratio in seen:
        learnt.add(size, ratio, now=0.0)
    newest = [ratio for _, ratio in seen[-ENOUGH:]]
    q10, q90 = learnt.quantiles(100, now=MAX_AGE_S + 1)
    if len(newest) < ENOUGH:
        assert (q10, q90) == (min(PRIOR), max(PRIOR))
    else:
        assert (q10, q90) == (min(*PRIOR, *newest), min(max(PRIOR), max(newest)))


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 1.0, 9.0]), st.sampled_from([0, 100, 5000]), RATIOS, st.booleans()),
        max_size=100,
    )
)
def test_asked_often_or_once_the_quantiles_are_the_same(
    turns: list[tuple[float, int, float, bool]],
) -> None:
    learnt, samples, now = LearntRatios(), [], 0.0
    for later_s, size, ratio, is_seen in turns:
        now += later_s
        if is_seen:
            learnt.add(size, ratio, now)
            samples.append((size, ratio, now))
        afresh = LearntRatios()
        for sample in samples:
            afresh.add(*sample)
        assert learnt.quantiles(size, now) == afresh.quantiles(size, now)


@given(st.lists(RATIOS, min_size=ENOUGH, max_size=60))
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


SECONDS = st.floats(0.0, 10.0)


@given(SECONDS, st.lists(SECONDS, min_size=FIXED_ENOUGH, max_size=100))
def test_a_fixed_time_is_found_whatever_the_prompts_took(fixed_s: float, predicted: list[float]) -> None:
    learnt = FixedTime()
    for seconds in predicted:
        learnt.add(0, seconds + fixed_s, seconds, now=0.0)
    assert learnt.seconds(0, now=1.0) == pytest.approx(fixed_s, abs=1e-9)


@given(st.lists(st.tuples(SECONDS, SECONDS, st.floats(0.0, 200.0)), max_size=80), st.floats(0.0, 300.0))
def test_a_fixed_time_is_one_that_was_seen_of_late_and_never_negative(
    seen: list[tuple[float, float, float]], now: float
) -> None:
    learnt = FixedTime()
    seen = sorted((sample for sample in seen if sample[2] <= now), key=lambda one: one[2])
    for observed, predicted, at in seen:
        learnt.add(0, observed, predicted, at)
    late = [max(0.0, observed - predicted) for observed, predicted, at in seen if now - at <= FIXED_AGE_S]
    assert learnt.seconds(0, now) in (*late, 0.0)
    if len(late) < FIXED_ENOUGH:
        assert learnt.seconds(0, now) == 0.0


@given(st.floats(0.0, 0.1), st.floats(1.0, 60.0), st.integers(FIXED_ENOUGH, 20), st.data())
def test_one_bad_start_teaches_no_fixed_time(
    fixed_s: float, bad_s: float, count: int, data: st.DataObject
) -> None:
    learnt, place = FixedTime(), data.draw(st.integers(0, count - 1))
    for turn in range(count):
        learnt.add(0, bad_s if turn == place else fixed_s, 0.0, now=0.0)
    assert learnt.seconds(0, now=1.0) == fixed_s


@given(st.lists(SECONDS, max_size=20), st.lists(st.tuples(st.integers(1, 60), SECONDS), max_size=20))
def test_what_long_prompts_took_is_not_expected_of_shorter_ones(
    short: list[float], long: list[tuple[int, float]]
) -> None:
    alone, both = FixedTime(), FixedTime()
    for observed_s in short:
        alone.add(1000, observed_s, 0.0, now=0.0)
        both.add(1000, observed_s, 0.0, now=0.0)
    for times, observed_s in long:
        both.add(3000 * times, observed_s, 0.0, now=0.0)
    assert both.seconds(1000, now=1.0) == alone.seconds(1000, now=1.0)
    assert both.seconds(10, now=1.0) == 0.0


def test_a_first_long_prompt_is_expected_to_behave_like_shorter_ones() -> None:
    learnt = FixedTime()
    for _ in range(FIXED_ENOUGH):
        learnt.add(1000, 0.01, 0.0, now=0.0)
    assert learnt.seconds(100_000, now=1.0) == 0.01
    for _ in range(FIXED_ENOUGH):
        learnt.add(100_000, 0.5, 0.0, now=0.0)
    assert learnt.seconds(100_000, now=1.0) == 0.5


def test_what_turned_out_to_be_over_is_forgotten() -> None:
    learnt = FixedTime()
    for _ in range(FIXED_ENOUGH):
        learnt.add(0, 3.0, 0.0, now=0.0)
    learnt.forget()
    assert learnt.seconds(0, now=0.0) == 0.0


@pytest.mark.parametrize("nonsense", [float("nan"), float("inf")])
def test_what_is_no_time_teaches_nothing(nonsense: float) -> None:
    learnt = FixedTime()
    for _ in range(FIXED_ENOUGH):
        learnt.add(0, nonsense, 0.1, now=0.0)
    assert learnt.seconds(0, now=0.0) == 0.0
