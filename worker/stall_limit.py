"""How long a step may last before its worker is taken for stalled."""

from __future__ import annotations

from collections.abc import Iterable

from scheduling.cost_model import Sample

LEAST_LIMIT_S = 30.0
LONGEST_STEPS = 50
"""Of the longest measured at the start, so many may one step last: a crowded machine is no stalled one."""


def stall_limit_s(samples: Iterable[Sample]) -> float:
    """How long a step may last, from the steps that were measured."""
    longest_s = max((seconds for _, seconds in samples), default=0.0)
    return max(LEAST_LIMIT_S, LONGEST_STEPS * longest_s)
