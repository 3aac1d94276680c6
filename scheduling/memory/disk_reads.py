"""Decide whether KV on a disk or in host memory is read, or computed because that is expected to be faster.

    compute = time that computing the tokens adds to steps that are full (`preemption.recompute_s`)
    read if read < compute, and stop reading after `compute` seconds

So a disk that has become slow costs a sequence at most as long as computing its prefix takes. Blocks at
another worker are judged in the same way (`prefix_reads.py`).
"""

from __future__ import annotations

from scheduling.cost_model import CostModel
from scheduling.memory.preemption import recompute_s

MOST_S = 10.0
"""No read may take longer, whatever computing would cost or where the cost of steps is not known."""


def read_limit_s(num_tokens: int, num_before: int, read_s: float, cost: CostModel) -> float | None:
    """Return how long reading `num_tokens` behind `num_before` others may take; None: compute them."""
    if num_tokens < 1 or num_before < 0:
        raise ValueError(f"num_tokens, num_before are {num_tokens}, {num_before}; accepted: from 1, from 0")
    limit_s = MOST_S
    if any(cost.coefficients):
        limit_s = min(limit_s, recompute_s(num_tokens, cost, num_before))
    return limit_s if read_s < limit_s else None
