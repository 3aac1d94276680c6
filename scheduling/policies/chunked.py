"""Stall-free batching with a fixed number of tokens as the budget.

Decodes are never paused for prefill, and a prompt is cut to what the budget leaves, so no step is longer than
its budget allows: Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve",
OSDI 2024.
"""

from __future__ import annotations

from scheduling.packing import fill_to_budget
from scheduling.policies.policy import Policy
from scheduling.step import StepPlan, StepView


def plan(view: StepView) -> StepPlan:
    """Run every decode, then chunks in order until the budget is used."""
    return StepPlan(view.decodes.num_seqs, fill_to_budget(view))


CHUNKED = Policy("chunked", plan)
