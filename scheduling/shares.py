"""Fair shares of tenants, by virtual token counters.

Each tenant has a counter of the work admitted for it under contention, divided by its weight:

    charge = (prompt tokens + OUTPUT_WEIGHT · expected output tokens) / weight

A tenant that comes back from idleness is lifted to the least counter among the active ones, so that idleness
earns no credit; what it is ahead by, it stays ahead by until the others have caught up, so that idleness pays
no debt either. Who is ahead of the least active other tenant by more than a burst is over its share. A tenant
that is alone never is. The counters of any two tenants that keep asking stay within one burst and one
request's charge of each other (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, which
orders requests by these counters; here they decide at admission).

Only what is admitted while work waits is charged. What spare capacity serves takes nothing from anybody, and
a tenant that asked for little meanwhile has earned nothing by it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

OUTPUT_WEIGHT = 2.0
"""A generated token costs about two of a prompt's, as in the paper."""
ACTIVE_MS = 10_000
"""A tenant that asked for nothing for so long is idle."""
MAX_DEBTS = 1000
"""Idle tenants remembered because they are ahead; beyond, the smallest leads are forgotten."""
BURST_S = 2.0
"""Seconds of the whole fleet's work that a tenant may be ahead by."""
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0


@dataclass(frozen=True, slots=True)
class TenantWeights:
    """How much of the fleet each tenant is entitled to, against the others. From 0.001 to 1000."""

    by_tenant: Mapping[str, float] = field(default_factory=dict)
    default: float = 1.0

    def __post_init__(self) -> None:
        _check_weight("default", self.default)
        for tenant, weight in self.by_tenant.items():
            _check_weight(f"by_tenant[{tenant!r}]", weight)

    def of(self, tenant: str) -> float:
        """The tenant's own weight, or everybody's."""
        return self.by_tenant.get(tenant, self.default)


def _check_weight(name: str, weight: float) -> None:
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise ValueError(f"{name} is {weight}; accepted: from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}")


def virtual_tokens(prompt_tokens: int, output_tokens: float, weight: float) -> float:
    """A request's charge: its work in prompt tokens, divided by its tenant's weight."""
    _check_weight("weight", weight)
    return (prompt_tokens + OUTPUT_WEIGHT * output_tokens) / weight


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a tenant stands, in virtual tokens: after its charge, or uncharged where it is over its share."""

    counter: float
    least: float | None
    """The least counter among the other active tenants; None where there are none."""
    others: int
    """Active tenants besides this one."""
    is_over: bool

    def catch_up_s(self, burst: float, rate: float) -> float:
        """Seconds until the least of the others is within `burst` of it, if these share `rate` virtual
        tokens per second evenly; 0 within its share.
        """
        if self.least is None:
            return 0.0
        return max(0.0, self.counter - self.least - burst) * self.others / rate


def is_over_share(counter: float, least: float | None, burst: float) -> bool:
    """Whether a tenant is ahead of the least active other one by more than `burst` virtual tokens."""
    return least is not None and counter - least > burst


def check_charge(tokens: float, burst: float) -> None:
    """`ValueError` for what would let a counter fall, or be lost."""
    if not 0 <= tokens < math.inf:
        raise ValueError(f"tokens is {tokens}; accepted: finite, from 0")
    if not burst >= 0:
        raise ValueError(f"burst is {burst}; accepted: from 0, infinite for no limit")


@dataclass(slots=True)
class _Active:
    counter: float
    until_ms: int


class TokenCounters:
    """The counters of one fleet's tenants. Times are milliseconds of a clock that never runs backwards.

    Kept are the active tenants and those idle ones that are ahead of them. Once nobody is active, all is
    forgotten: there is nobody left to be fair to.
    """

    def __init__(self) -> None:
        self._active: dict[str, _Active] = {}
        self._debts: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._active) + len(self._debts)

    def charge(self, tenant: str, tokens: float, burst: float, now_ms: int) -> Standing:
        """Charge a request, unless its tenant is over its share. Either way the tenant is active."""
        check_charge(tokens, burst)
        self._forget(now_ms)
        least = min((one.counter for name, one in self._active.items() if name != tenant), default=None)
        mine = self._active.get(tenant)
        counter = max(self._debts.pop(tenant, 0.0), least or 0.0) if mine is None else mine.counter
        is_over = is_over_share(counter, least, burst)
        if not is_over:
            counter += tokens
        self._active[tenant] = _Active(counter, now_ms + ACTIVE_MS)
        return Standing(counter, least, len(self._active) - 1, is_over)

    def refund(self, tenant: str, tokens: float, now_ms: int) -> None:
        """Take back the charge of a request that was not admitted in the end; of an idle tenant, nothing."""
        check_charge(tokens, 0.0)
        self._forget(now_ms)
        mine = self._active.get(tenant)
        if mine is not None:
            mine.counter -= min(tokens, mine.counter)

    def _forget(self, now_ms: int) -> None:
        idle = {name: one.counter for name, one in self._active.items() if one.until_ms <= now_ms}
        for name in idle:
            del self._active[name]
        self._debts |= idle
        # Nobody active: every lead is over nobody.
        least = min((one.counter for one in self._active.values()), default=math.inf)
        self._debts = {name: lead for name, lead in self._debts.items() if lead > least}
        if len(self._debts) > MAX_DEBTS:
            largest = sorted((lead, name) for name, lead in self._debts.items())[-MAX_DEBTS:]
            self._debts = {name: lead for lead, name in largest}
