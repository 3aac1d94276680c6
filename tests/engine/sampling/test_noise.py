"""Noise is a pure function of its counter, and looks like noise."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from engine.sampling.sampler import uniforms

PINNED = [
    0.13870941014555432,
    0.6935121390102292,
    0.26913031959045414,
    0.18436667429957682,
    0.25123198887206627,
]
WORD = st.integers(0, 2**64 - 1)


def draw(rows: list[tuple[int, int, int]]) -> list[float]:
    seeds, choices, indexes = (np.array(column, dtype=np.uint64) for column in zip(*rows, strict=True))
    return uniforms(seeds, choices, indexes).tolist()


@given(st.lists(st.tuples(WORD, WORD, WORD), min_size=1, max_size=20))
def test_a_row_does_not_depend_on_its_neighbours(rows: list[tuple[int, int, int]]) -> None:
    together = draw(rows)
    assert together == [draw([row])[0] for row in rows]
    assert all(0 < value < 1 for value in together)


def test_numbers_are_pinned() -> None:
    """A seed that was handed out must mean the same tokens in every version."""
    assert draw([(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2**64 - 1, 15, 4096)]) == PINNED


def test_seeds_choices_and_indexes_are_uniform_and_independent() -> None:
    """The inputs are fixed, so the outcome is too: p-values that were fine once stay fine."""
    count = 20_000
    counter, zero = np.arange(count, dtype=np.uint64), np.zeros(count, dtype=np.uint64)
    series = [uniforms(counter, zero, zero), uniforms(zero, counter, zero), uniforms(zero, zero, counter)]
    for values in series:
        assert stats.kstest(values, "uniform").pvalue > 0.001
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.03
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert abs(np.corrcoef(series[first], series[second])[0, 1]) < 0.03
