"""Static batching: a batch starts when nothing runs, and nothing joins it until its last member has ended.

Inference servers did this before iteration-level scheduling; it is the baseline of Yu et al., "Orca: A
Distributed Serving System for Transformer-Based Generative Models", OSDI 2022. It differs from the original
in one point, to its advantage: a member that has ended is no longer computed.
"""

from __future__ import annotations

from scheduling.packing import whole_batch
from scheduling.policies.policy import Policy
from scheduling.step import StepPlan, StepView


def plan(view: StepView) -> StepPlan:
    """Run all decodes; without any, the prompts of the next batch, all in one step."""
    if view.decodes.num_seqs:
        return StepPlan(view.decodes.num_seqs)
    return StepPlan(0, whole_batch(view))


STATIC = Policy("static", plan, reserves_maximum=True)
