from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from scheduling.cost.cost_fit import KNEES, MIN_SAMPLES, fit, nnls
from scheduling.cost_model import CostModel, StepShape
from tests.scheduling.cost.steps import DEMO, grid, measure

positive = st.floats(0.1, 10)
truths = st.builds(
    lambda factors, knee: CostModel(
        tuple(factor * value for factor, value in zip(factors, DEMO.coefficients, strict=True)), knee
    ),
    st.tuples(*[positive] * 6),
    st.sampled_from([knee for knee in KNEES if knee <= 64]),
)


@settings(max_examples=25)
@given(truths)
def test_the_fit_recovers_the_coefficients_that_made_the_samples(truth: CostModel) -> None:
    found = fit(measure(truth))
    assert found is not None
    assert found.knee_tokens == truth.knee_tokens
    assert found.coefficients == pytest.approx(truth.coefficients, rel=1e-6)
    assert (found.ratio_q10, found.ratio_q95) == pytest.approx((1.0, 1.0), rel=1e-6)


def test_noise_moves_the_band_and_not_the_middle() -> None:
    found = fit(measure(DEMO, noise=0.1) + measure(DEMO, noise=0.1, seed=2))
    assert found is not None
    assert 0.8 < found.ratio_q10 < 0.95 < found.ratio_q50 < 1.05 < found.ratio_q95 < 1.3
    for shape in grid():
        assert found.predict(shape) == pytest.approx(DEMO.predict(shape), rel=0.15)


def test_a_cost_that_is_not_there_is_zero_and_not_negative() -> None:
    falling = [(shape, 1e-3 + 1e-3 / shape.num_seqs) for shape in grid()]
    found = fit(falling)
    assert found is not None
    assert min(found.coefficients) >= 0
    assert found.coefficients[1] == 0


def test_steps_at_the_floor_say_nothing_of_their_contents() -> None:
    rng = random.Random(1)
    floor_s = 0.008
    samples = [
        (shape, max(seconds, floor_s * rng.uniform(0.8, 1.4)) if shape.has_chunk else seconds)
        for shape, seconds in measure(DEMO) * 3
    ]
    found = fit(samples, floor_s=floor_s)
    assert found is not None
    assert found.chunk_floor_s == floor_s
    for shape in grid():
        least_s = floor_s if shape.has_chunk else 0.0
        assert found.predict(shape) == pytest.approx(max(least_s, DEMO.predict(shape)), rel=0.15)


WILD = [math.nan, math.inf, -math.inf, 0.0, -1.0, 1e-9, 1e4, 1e-6]


@given(st.lists(st.sampled_from(WILD), min_size=1, max_size=4), st.integers(0, 2**31))
@settings(max_examples=25)
def test_a_few_wild_samples_do_not_move_the_fit(wild: list[float], seed: int) -> None:
    rng = random.Random(seed)
    samples = measure(DEMO) + [(rng.choice(grid()), seconds) for seconds in wild]
    rng.shuffle(samples)
    found = fit(samples)
    assert found is not None
    for shape in grid():
        assert found.predict(shape) == pytest.approx(DEMO.predict(shape), rel=0.02)


def test_too_little_to_go_by_keeps_the_last_good_fit() -> None:
    few = measure(DEMO)[: MIN_SAMPLES - 1]
    assert fit(few) is None
    assert fit(few, previous=DEMO) is DEMO
    nothing = [(shape, math.nan) for shape in grid()]
    assert fit(nothing, previous=DEMO) is DEMO
    nowhere = [(StepShape(1, 1, 0, math.nan, 0), 1.0)] * 30
    assert fit(nowhere, previous=DEMO) is DEMO


def test_equal_samples_give_a_model_of_that_one_cost() -> None:
    shape = StepShape.of(4, 100, [])
    found = fit([(shape, 0.002)] * 50)
    assert found is not None
    assert found.predict(shape) == pytest.approx(0.002)


@given(st.integers(1, 6), st.integers(6, 30), st.integers(0, 2**31))
def test_nnls_finds_the_least_squares_that_scipy_finds(width: int, height: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns = rng.normal(size=(height, width)) * 10.0 ** rng.integers(-6, 6, size=width)
    target = rng.normal(size=height)
    x = nnls(columns, target)
    assert (x >= 0).all()
    _, best = optimize.nnls(columns / np.linalg.norm(columns, axis=0), target)
    assert float(np.linalg.norm(columns @ x - target)) == pytest.approx(best, rel=1e-9, abs=1e-9)


def test_a_column_of_zeros_is_no_trouble() -> None:
    columns = np.array([[1.0, 0.0], [2.0, 0.0]])
    assert nnls(columns, np.array([2.0, 4.0])).tolist() == pytest.approx([2.0, 0.0])
