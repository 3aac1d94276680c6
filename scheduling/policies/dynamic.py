"""Dynamic batching: like static, but a batch closes when it is full or its oldest has waited long enough.

Crankshaw et al., "Clipper: A Low-Latency Online Prediction Serving System", NSDI 2017; since then the
dynamic batcher of model servers.
"""

from __future__ import annotations

from scheduling.policies import static
from scheduling.policies.policy import Policy
from scheduling.step import StepPlan, StepView

WINDOW_S = 0.05
"""The longest time that a request waits for others; about the time of a prompt, so it at most doubles
that."""


def plan(view: StepView) -> StepPlan:
    """Run all decodes; without any, the next batch once it is closed by size or by its window."""
    if not view.decodes.num_seqs and (wait_s := _open_for_s(view)) > 0:
        return StepPlan(0, wait_s=wait_s)
    return static.plan(view)


def _open_for_s(view: StepView) -> float:
    """Return how much longer the next batch may be joined; 0 if it is closed, or has no member."""
    if not view.waiting or sum(work.num_seqs for work in view.waiting) >= view.max_seqs:
        return 0.0
    return max(0.0, WINDOW_S - max(work.waited_s for work in view.waiting))


DYNAMIC = Policy("dynamic", plan, reserves_maximum=True)
