"""Promises as ratios of the hardware's times without load, so that the hardware cancels.

A time per output token is a multiple of D, a decode step of 32 sequences of 4096 tokens (scaled like the
workload). A time to first token is a multiple of the median time of the workload's prompts alone. Both are
measured in the run that uses them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

TTFT_RATIOS = (5.0, 10.0, 25.0)
TPOT_RATIOS = (1.5, 2.5, 5.0)
REFERENCE_SEQS = 32
REFERENCE_CONTEXT = 4096
"""Before scaling."""


@dataclass(frozen=True, slots=True)
class References:
    """The times of this hardware without load, in seconds."""

    decode_step_s: float
    """D"""
    prefill_s: float
    """The workload's median time to first token, one request at a time."""

    def __post_init__(self) -> None:
        for name in ("decode_step_s", "prefill_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} is {value}; accepted: a finite number above 0")

    def ttft_ms(self, ratio: float) -> int:
        """Return the promise for a first token; at least 1 ms."""
        return _ms("the TTFT ratio", ratio, self.prefill_s)

    def tpot_ms(self, ratio: float) -> int:
        """Return the promise for the tokens after it; at least 1 ms."""
        return _ms("the TPOT ratio", ratio, self.decode_step_s)


def _ms(name: str, ratio: float, unit_s: float) -> int:
    if not (math.isfinite(ratio) and ratio > 0):
        raise ValueError(f"{name} is {ratio}; accepted: a finite number above 0")
    return max(1, round(ratio * unit_s * 1000))
