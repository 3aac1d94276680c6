"""What a tenant may ask for over time: token buckets, one of requests and one of tokens.

A bucket fills at a rate and holds a burst at most. What costs more than the burst passes when the bucket is
full, and leaves it in debt: the average holds for every size. `state/lua/budget.lua` does the same sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """`per_s` over time, `burst` at once; raises `ValueError`."""

    per_s: float
    burst: float

    def __post_init__(self) -> None:
        for name, number in (("per_s", self.per_s), ("burst", self.burst)):
            if not 0 < number < math.inf:
                raise ValueError(f"{name} is {number:g}; accepted: a number over 0")


@dataclass(frozen=True, slots=True)
class Budget:
    """None: as much as the fleet gives."""

    requests: Rate | None = None
    tokens: Rate | None = None

    @property
    def is_unlimited(self) -> bool:
        """Nothing needs to be counted."""
        return self.requests is None and self.tokens is None


UNLIMITED = Budget()


@dataclass(frozen=True, slots=True)
class Levels:
    """What was left of a budget at a time; in debt below 0."""

    requests: float
    tokens: float
    at_ms: int


@dataclass(frozen=True, slots=True)
class Taken:
    """`wait_ms` over 0: nothing was taken, and that is when it could be."""

    wait_ms: int
    left: Levels


def take(budget: Budget, before: Levels | None, requests: float, tokens: float, now_ms: int) -> Taken:
    """Both or neither. `before` is None for a tenant that has long taken nothing."""
    filled = (None, None) if before is None else (before.requests, before.tokens)
    passed_ms = 0 if before is None else max(0, now_ms - before.at_ms)
    requests_left, wait_ms = _take(budget.requests, filled[0], passed_ms, requests)
    tokens_left, also_ms = _take(budget.tokens, filled[1], passed_ms, tokens)
    return Taken(max(wait_ms, also_ms), Levels(requests_left, tokens_left, now_ms))


def _take(rate: Rate | None, level: float | None, passed_ms: int, cost: float) -> tuple[float, int]:
    """What is left when `cost` was taken, and how long to wait before that. A `level` of None is full."""
    if rate is None:
        return 0.0, 0
    filled = rate.burst if level is None else min(rate.burst, level + passed_ms * rate.per_s / 1000)
    missing = min(cost, rate.burst) - filled
    return filled - cost, math.ceil(missing * 1000 / rate.per_s) if missing > 0 else 0
