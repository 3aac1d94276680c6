"""One definition for both clocks: quantiles are values, and weights count as repetitions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.reporting.quantiles import quantile, quantiles, weighted_quantiles

VALUES = st.lists(st.tuples(st.floats(0, 100), st.integers(0, 5)), min_size=1, max_size=40)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_the_least_value_with_that_share_at_or_below_it(
    values: list[float], share: float
) -> None:
    found = quantile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-6
    assert sum(value < found for value in values) < share * len(values) + 1e-6


@given(VALUES)
def test_weights_count_as_repetitions(pairs: list[tuple[float, int]]) -> None:
    values, weights = (np.array(entry, dtype=np.float64) for entry in zip(*pairs, strict=True))
    found = weighted_quantiles(values, weights)
    expected = quantiles([value for value, count in pairs for _ in range(count)])
    if expected is None or found is None:
        assert found is expected
        return
    assert replace(found, mean=0.0) == replace(expected, mean=0.0)
    assert math.isclose(found.mean, expected.mean, abs_tol=1e-9)


def test_values_that_are_missing_do_not_count() -> None:
    assert quantiles([]) is quantiles([None]) is None
    assert math.isnan(quantile([], 0.5))
    found = quantiles([1.0, None, 2.0, 3.0, 4.0])
    assert found is not None
    assert (found.p50, found.p90, found.p99) == (2.0, 4.0, 4.0)
