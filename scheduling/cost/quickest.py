"""The quickest steps that a worker has ever reported.

A worker reports what its steps cost at present: more while its machine is busy with something else, and
without trust while it relearns. An SLO that even the quickest costs could not keep was never possible,
whatever the worker reports at the moment.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.cost.cost_model import CostModel, StepShape


def early_s(cost: CostModel, shape: StepShape) -> float:
    """Return the seconds that one in ten such steps stays within."""
    return cost.ratio_q10 * cost.predict(shape)


def quickest(known: Sequence[CostModel], told: CostModel, token_budget: int) -> tuple[CostModel, ...]:
    """Return the costs to remember: the quickest for a lone decode, and the quickest for a full prompt step.

    A worker that has measured nothing yet calls every step free; that is no cost.
    """
    if not any(told.coefficients):
        return tuple(known)
    all_told = (*known, told)
    for_decode = _quickest_for(StepShape.of(1, 0, ()), all_told)
    for_prompt = _quickest_for(StepShape.of(0, 0, [(0, token_budget)]), all_told)
    return tuple(dict.fromkeys((for_decode, for_prompt)))


def _quickest_for(shape: StepShape, costs: Sequence[CostModel]) -> CostModel:
    return min(costs, key=lambda one: early_s(one, shape))
