"""Baton's own policy: a step is filled until it lasts as long as the promises of the running decodes allow.

It is stall-free like Sarathi-Serve (Agrawal et al., OSDI 2024), but its budget is time: the slack until the
next promised token is due, and at most the longest gap that the strictest promise allows. A strict promise in
the batch makes chunks short, a batch without strict promises makes them long, and no number has to be tuned.

All slack is spent at once, for two reasons. Slack that a sequence has left when it ends is of no use. And an
early token is expensive: by Little's law the batch grows as tokens get slower, and the weights are read once
for the whole batch, so a fleet carries most when every token comes just in time. Nothing is borrowed from
later tokens: in simulation on an H200's costs that gained nothing once admission keeps the queue short, and
it breaks promises of short outputs.
"""

from __future__ import annotations

from scheduling.packing import fill_to_budget, fill_to_duration
from scheduling.placement import Placement
from scheduling.policies.policy import Order, Policy
from scheduling.prediction import arrival_s
from scheduling.step import NO_LIMIT_S, StepPlan, StepView


def plan(view: StepView) -> StepPlan:
    """Run every decode, then chunks in order while the step still fits.

    Only the fixed budget limits it if nothing was promised, or if costs are not known well enough.
    """
    limit_s = duration_s(view)
    if (
        limit_s == NO_LIMIT_S
        or not view.waiting
        or not view.cost.is_trusted
        or not any(view.cost.coefficients)
    ):
        return StepPlan(view.decodes.num_seqs, fill_to_budget(view))
    return StepPlan(view.decodes.num_seqs, fill_to_duration(view, limit_s))


def duration_s(view: StepView) -> float:
    """Return the longest this step may last; infinite if decodes run and none has a promise."""
    limit_s = min(view.decodes.slack_s, view.decodes.gap_limit_s)
    # On a pipeline, decodes of other steps may wait for one that has none.
    return min(limit_s, arrival_s(view.cost)) if view.decodes.num_seqs == 0 else limit_s


SLACK = Policy(
    name="slack",
    plan=plan,
    order=Order.DUE,
    promises=True,
    binds_at_arrival=False,
    reserves_maximum=False,
    cuts_steps=True,
    placement=Placement.CONDITIONAL,
)
