"""How long a step may last before its worker counts as stalled."""

from __future__ import annotations

from collections.abc import Iterable

from scheduling.cost.cost_model import Sample

MIN_LIMIT_S = 30.0
LONGEST_STEPS = 50
"""A step may last this many times the longest one measured at the start: a busy machine is not stalled."""


def stall_limit_s(samples: Iterable[Sample], max_step_tokens: int) -> float:
    """Return how long a step of up to `max_step_tokens` tokens may last, from the steps that were measured.

    If there was no time to measure the largest step, it may last as long as the same tokens would take in
    steps of the largest measured size.
    """
    known = list(samples)
    longest_s = max((seconds for _, seconds in known), default=0.0)
    tokens, seconds = max(((shape.num_tokens, seconds) for shape, seconds in known), default=(1, 0.0))
    return max(MIN_LIMIT_S, LONGEST_STEPS * longest_s, -(-max_step_tokens // tokens) * seconds)
