"""Every decision that is timed can be taken."""

from __future__ import annotations

from benchmarks.costs.decisions import decisions, microseconds
from scheduling.policies import NAMES
from scheduling.step import StepPlan


def test_every_policy_is_timed_and_has_something_to_do() -> None:
    found = decisions()
    for name in NAMES:
        plans = [decide() for key, decide in found.items() if key.startswith(f"plan, {name}:")]
        assert len(plans) == 3
        assert all(isinstance(plan, StepPlan) and (plan.num_decodes or plan.chunks) for plan in plans)


def test_all_decisions_can_be_timed() -> None:
    assert all(microseconds(decide, 1) > 0 for decide in decisions().values())
