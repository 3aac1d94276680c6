"""A tenant's budgets over time: two token buckets, for requests and for tokens.

A bucket fills at a rate and holds at most a burst. A request that costs more than the burst passes when the
bucket is full, and leaves it in debt, so the average holds for requests of every size.
`runtime/state/lua/budget.lua` computes the same.

A request takes one of the first before anything is done for it, and of the second what tokenising its text
costs, which it does not get back. Once its tokens are counted, it takes the rest. A request that has a name
pays once, however often it is sent and whichever router takes it over: Redis keeps its receipt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

RECEIPT_CALLS = 16
"""Calls of one request that pay once: a client calls again when a router or a connection dies. More are
charged like a new request, or one id would buy any number of calls."""
CALLS_AFTER_END = 2
"""How many of these calls a request has left that has ended: enough for a client that did not hear of it."""
RECEIPT_S = 3600
"""How long what a request has paid is remembered."""
ENDED_RECEIPT_S = 60
"""The same once it has ended, as long as its router remembers it, and before it has paid for tokens."""
TOKENISED_BYTES = 64
"""Bytes of text that cost a token of the budget to tokenise: a sixteenth of what they cost to compute, at
about four bytes for a token."""


def tokenising_cost(num_bytes: int) -> int:
    """Return the tokens that tokenising a text costs its tenant, whatever comes of the request."""
    return -(-num_bytes // TOKENISED_BYTES)


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
    """A tenant's rates; None where there is no limit."""

    requests: Rate | None = None
    tokens: Rate | None = None

    @property
    def is_unlimited(self) -> bool:
        """True if nothing needs to be counted."""
        return self.requests is None and self.tokens is None


UNLIMITED = Budget()


@dataclass(frozen=True, slots=True)
class Levels:
    """The rest of a budget at a time; a debt if below 0."""

    requests: float
    tokens: float
    at_ms: int


@dataclass(frozen=True, slots=True)
class Taken:
    """The result of `take`. If `wait_ms` is above 0, nothing was taken, and it could be after that time.

    `tokens` are those that the call itself was to pay: fewer than asked for if its request has a receipt.
    """

    wait_ms: int
    left: Levels
    tokens: float = 0


@dataclass(frozen=True, slots=True)
class Payer:
    """One call of a request that has a name, as its receipt knows it."""

    request: str
    """The name and content of the request, unique for its tenant."""
    call: str
    """Unique to this call, and the same if it is repeated after a lost answer."""


def take(budget: Budget, before: Levels | None, requests: float, tokens: float, now_ms: int) -> Taken:
    """Take from both buckets or from neither. `before` is None for a tenant that has long taken nothing."""
    filled = (None, None) if before is None else (before.requests, before.tokens)
    passed_ms = 0 if before is None else max(0, now_ms - before.at_ms)
    requests_left, wait_ms = _take(budget.requests, filled[0], passed_ms, requests)
    tokens_left, also_ms = _take(budget.tokens, filled[1], passed_ms, tokens)
    return Taken(max(wait_ms, also_ms), Levels(requests_left, tokens_left, now_ms), tokens)


def _take(rate: Rate | None, level: float | None, passed_ms: int, cost: float) -> tuple[float, int]:
    """Return the rest once `cost` is taken, and the wait in ms until it can be. A `level` of None is full."""
    if rate is None:
        return 0.0, 0
    filled = rate.burst if level is None else min(rate.burst, level + passed_ms * rate.per_s / 1000)
    missing = min(cost, rate.burst) - filled
    return filled - cost, math.ceil(missing * 1000 / rate.per_s) if missing > 0 else 0
