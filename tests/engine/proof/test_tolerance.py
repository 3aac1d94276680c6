"""How far apart rows may be."""

from __future__ import annotations

import math

import pytest
import torch

from engine.proof.tolerance import FACTOR, MIXED, Excess, distances
from engine.proof.tolerance import excess as excess_of

NOISE = torch.full((10,), 1e-6, dtype=torch.float64)


def excess(differences: torch.Tensor, noise: torch.Tensor, *, is_mixture: bool = False) -> Excess | None:
    return excess_of(differences, noise, is_mixture=is_mixture)


def with_row(value: float, row: int = 3) -> torch.Tensor:
    differences = NOISE.clone()
    differences[row] = value
    return differences


def test_a_distance_is_relative_to_the_length_of_the_row() -> None:
    expected = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    found = torch.tensor([[3.0, 4.5], [0.0, 2.0]])
    assert distances(found, expected).tolist() == [0.1, 0.0]


def test_many_rows_are_compared_like_few() -> None:
    expected = torch.ones(50, 3)
    assert distances(expected * 1.5, expected).tolist() == pytest.approx([0.5] * 50)


def test_rows_within_a_multiple_of_the_noise_are_accepted() -> None:
    assert excess(NOISE, NOISE) is None
    assert excess(with_row(0.99 * FACTOR * 1e-6), NOISE) is None


@pytest.mark.parametrize("value", [1.01 * FACTOR * 1e-6, 1.0, math.inf, math.nan])
def test_a_single_row_beyond_it_is_an_excess(value: float) -> None:
    found = excess(with_row(value), NOISE)
    assert found is not None
    assert found.row == 3
    assert found.tolerance == pytest.approx(FACTOR * 1e-6)


def test_a_row_that_is_noisier_than_others_may_be_further_away() -> None:
    assert excess(with_row(FACTOR * 4e-6), with_row(5e-6)) is None


def test_rows_may_jump_where_transformers_own_do() -> None:
    noise = with_row(1.0, row=0)
    assert excess(with_row(1.0), noise) is None
    assert excess(torch.full((10,), 1.0, dtype=torch.float64), noise) is not None


def test_a_few_rows_of_a_mixture_may_jump() -> None:
    differences = NOISE.clone()
    differences[:MIXED] = 1.0
    assert excess(differences, NOISE, is_mixture=True) is None
    assert excess(differences, NOISE) is not None
    differences[MIXED] = 1.0
    assert excess(differences, NOISE, is_mixture=True) is not None


def test_noise_that_is_not_a_number_accepts_nothing() -> None:
    assert excess(NOISE, NOISE * math.nan) is not None
