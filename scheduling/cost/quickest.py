"""The quickest step costs that a worker has ever reported.

A worker reports its present step costs: higher ones while its machine is busy with something else, and
untrusted ones while it relearns. An SLO that even the quickest costs could not keep was never possible,
whatever the worker reports at the moment.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.cost.cost_model import CostModel, StepShape


def early_s(cost: CostModel, shape: StepShape) -> float:
    """Return the seconds that one in ten such steps does not exceed."""
    return cost.ratio_q10 * cost.predict(shape)


def quickest(known: Sequence[CostModel], reported: CostModel, token_budget: int) -> tuple[CostModel, ...]:
    """Return the costs to remember: the quickest for a lone decode, and the quickest for a full prompt step.

    A worker that has measured nothing yet reports every step as free; such a report is ignored.
    """
    if not any(reported.coefficients):
        return tuple(known)
    costs = (*known, reported)
    for_decode = _quickest_for(StepShape.of(1, 0, ()), costs)
    for_prompt = _quickest_for(StepShape.of(0, 0, [(0, token_budget)]), costs)
    return tuple(dict.fromkeys((for_decode, for_prompt)))


def _quickest_for(shape: StepShape, costs: Sequence[CostModel]) -> CostModel:
    return min(costs, key=lambda cost: early_s(cost, shape))
