"""Iteration-level scheduling: sequences join and leave between steps, and a prompt joins in one piece.

Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models", OSDI 2022. The step
that computes a prompt includes the decodes, and lasts as long as the prompt does. Memory is reserved for the
longest output that a request may have, as in the paper. It differs from the original in one point, to its
advantage: prompts beyond the first join a step only within its token budget.
"""

from __future__ import annotations

from scheduling.packing import whole_prompts
from scheduling.policies.policy import Policy
from scheduling.step import StepPlan, StepView


def plan(view: StepView) -> StepPlan:
    """Run every decode, and whole prompts in order."""
    return StepPlan(view.decodes.num_seqs, whole_prompts(view, view.decodes.num_seqs))


ORCA = Policy("orca", plan, reserves_maximum=True)
