"""Prompts before decodes: while any prompt waits, a step computes whole prompts only, and decodes pause.

This is the scheduler of the first vLLM: Kwon et al., "Efficient Memory Management for Large Language Model
Serving with PagedAttention", SOSP 2023. It has the best time to first token of an unloaded engine, but each
burst of prompts is a gap in every stream.
"""

from __future__ import annotations

from scheduling.packing import whole_prompts
from scheduling.policies.policy import Policy
from scheduling.step import StepPlan, StepView


def plan(view: StepView) -> StepPlan:
    """Run whole prompts in order; if none waits, every decode."""
    if view.waiting:
        return StepPlan(0, whole_prompts(view, num_decodes=0))
    return StepPlan(view.decodes.num_seqs)


PREFILL_FIRST = Policy("prefill_first", plan)
