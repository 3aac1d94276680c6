"""Decodes first, then chunks in order, never over the budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.cost_model import NUM_COEFFICIENTS, CostModel
from scheduling.policies import chunked
from scheduling.step import Chunk, DecodeLoad, PrefillWork, StepPlan, StepView

LENGTHS = st.lists(st.integers(1, 300), max_size=12)


FREE = CostModel((0.0,) * NUM_COEFFICIENTS, 0.0)


def plan_step(num_decodes: int, waiting: list[PrefillWork], budget: int) -> StepPlan:
    return chunked.plan(StepView(DecodeLoad(num_decodes), waiting, budget, 64, FREE))


def work(lengths: list[int]) -> list[PrefillWork]:
    return [PrefillWork(key, length) for key, length in enumerate(lengths)]


@pytest.mark.parametrize(
    ("num_decodes", "lengths", "budget", "chunks"),
    [
        (0, [], 8, ()),
        (3, [10], 8, (Chunk(0, 5),)),
        (0, [3, 4, 9], 8, (Chunk(0, 3), Chunk(1, 4), Chunk(2, 1))),
        (8, [1], 8, ()),
        (9, [1], 8, ()),
        (7, [5, 5], 8, (Chunk(0, 1),)),
    ],
)
def test_literal_plans(num_decodes: int, lengths: list[int], budget: int, chunks: tuple[Chunk, ...]) -> None:
    assert plan_step(num_decodes, work(lengths), budget) == StepPlan(num_decodes, chunks)


@given(st.integers(0, 80), LENGTHS, st.integers(1, 500))
def test_a_plan_is_full_ordered_and_within_its_budget(
    num_decodes: int, lengths: list[int], budget: int
) -> None:
    plan = plan_step(num_decodes, work(lengths), budget)
    assert plan.num_decodes == num_decodes
    scheduled = sum(chunk.num_tokens for chunk in plan.chunks)
    assert scheduled == max(0, min(sum(lengths), budget - num_decodes))
    assert [chunk.key for chunk in plan.chunks] == list(range(len(plan.chunks)))
    assert all(chunk.num_tokens == lengths[chunk.key] for chunk in plan.chunks[:-1])
    assert all(0 < chunk.num_tokens <= lengths[chunk.key] for chunk in plan.chunks)


def test_a_budget_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="token_budget must be at least 1, not 0"):
        plan_step(1, [], 0)
