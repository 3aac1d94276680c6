"""Baton's own."""

from __future__ import annotations

from scheduling.packing import fill_to_budget
from scheduling.policies.policy import Order, Policy
from scheduling.step import StepPlan, StepView


def plan(view: StepView) -> StepPlan:
    """Every decode, then chunks in order while the step still fits."""
    return StepPlan(view.decodes.num_seqs, fill_to_budget(view))


SLACK = Policy(
    name="slack",
    plan=plan,
    order=Order.DUE,
    promises=True,
    binds_at_arrival=False,
    reserves_maximum=False,
)
