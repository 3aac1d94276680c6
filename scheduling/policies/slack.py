"""Baton's own: a step lasts as long as the promises of the running decodes allow, and is filled to that.

Stall-free like Sarathi-Serve (Agrawal et al., OSDI 2024), but its budget is time: the slack until the next
token that anybody was promised, at most the longest gap the strictest promise stands. A strict reader in the
batch makes chunks short, a patient batch makes them long, and no number has to be tuned.

All slack is spent at once, for two reasons. What a sequence has left over when it ends serves nobody. And a
token before its time is a dear one: by Little's law the batch is as large as tokens are slow, and the weights
are read once for all of it, so a fleet carries most when every token comes just as promised. Nothing is
borrowed from tokens to come either: in simulation on an H200's costs that gained nothing once admission keeps
the queue short, and it breaks promises of short outputs.
"""

from __future__ import annotations

from scheduling.packing import fill_to_budget, fill_to_duration
from scheduling.placement import Placement
from scheduling.policies.policy import Order, Policy
from scheduling.step import NO_LIMIT_S, StepPlan, StepView

ARRIVAL_S = 0.05
"""Longest step without decodes: an arrival can get in after it."""


def plan(view: StepView) -> StepPlan:
    """Every decode, then chunks in order while the step still fits.

    The fixed budget alone holds where nothing was promised, and where costs are not known well enough.
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
    """The longest this step may last; infinite where decodes run and nothing was promised to any."""
    if view.decodes.num_seqs == 0:
        return ARRIVAL_S
    return min(view.decodes.slack_s, view.decodes.gap_limit_s)


SLACK = Policy(
    name="slack",
    plan=plan,
    order=Order.DUE,
    promises=True,
    binds_at_arrival=False,
    reserves_maximum=False,
    placement=Placement.CONDITIONAL,
)
