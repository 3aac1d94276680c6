"""Fair shares of tenants: of the queue, by virtual token counters, and of seats, by turns.

**The queue.** Each tenant has a counter of the work admitted for it, divided by its weight:

    charge = (prompt tokens + OUTPUT_WEIGHT · expected output tokens) / weight

When an idle tenant comes back, its counter is raised to the least counter among the active ones, so idleness
earns no credit. A lead is kept until the others have caught up, so idleness pays no debt either (Sheng et
al., "Fairness in Serving Large Language Models", OSDI 2024, which orders requests by these counters).

Here the counters decide at admission: the larger a tenant's lead over the least served active one, the
shorter the queue that it may still join. With a short queue, or alone, no tenant is limited, so no capacity
is idle for the sake of fairness. With a long queue, tenants that ask for more than their share end up with
the same lead, and split the rest by weight. A lag counts up to a band at most: a tenant that asks for less
than its share falls behind forever, and is owed nothing for it. Whether a queue is long depends on the
request: the same queue may be short for a request that can wait, and long for one that cannot.

Two tenants that keep asking stay within the allowed lead plus one request's charge of each other, per weight,
as long as both fit into the band.

**Seats.** The next free seat goes to the tenant that holds the fewest. A seat is a sequence's place in the
batch of a decode worker. Counters decide who may join a long queue of prompts. They do not see that seats are
scarce: sequences of one tenant may hold all of them for minutes, while few prompts wait. So the seats are
shared as well, without any budget set:

- Within a class, a request that takes turns gives its place to the first request of the tenant that holds the
  fewest seats of the fleet, per weight. Of equals the one whose request is due first goes first, so none is
  passed for ever.
- A request that states a TTFT takes no turns. It keeps its place, since the promise that it got counts on
  that, and no turn passes it. What its tenant may ask for in this way is bounded by the tenants' shares.
- A tenant that has waited for `PATIENCE_S`, and finds no seat, gets one of a tenant that keeps at least as
  many even then (`may_yield`; `router/core/move.py` takes it). Sequences may run for minutes, and none of
  them may end for as long.

With one tenant, requests go in the order of the queue. `lanes.lua` and `grant.lua` in `runtime/state/lua/`
decide the same in Redis; times grow with the logarithm of the queue and of the number of tenants.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from scheduling.request import Slo
from scheduling.value import value

OUTPUT_WEIGHT = 2.0
"""A generated token costs about two of a prompt's, as in the paper."""
ACTIVE_MS = 10_000
"""A tenant is idle after this long without a request."""
CHARGED_MS = 60_000
"""How long a charge is remembered: a router or a client that asks again for the request pays nothing more."""
MAX_DEBTS = 1000
"""Idle tenants remembered because they have a lead; beyond, the smallest leads are forgotten."""
BAND_S = 4.0
"""The largest lead that counts, in seconds of the whole fleet's work: several large requests."""
FREE_S, FULL_S = 1.0, 2.0
"""Seconds of prompt work that waits in the queue or at workers: up to the first, any tenant may join; from
the second on, only the least served one."""
FREE_PART, FULL_PART = 0.125, 0.375
"""The same limits as shares of the requested TTFT, used where shorter: past the second, the least served
tenant must still find room within the TTFT."""
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0
SEAT_SHARE = 1000
"""The count of one seat, for a tenant of the weight 1."""
PATIENCE_S = 1.0
"""How long a request waits before a seat is taken for it: ends of sequences are mostly nearer."""
NEVER = 1 << 62

Place = tuple[int, str]
"""Score in the queue, and request key."""


# The queue


@value
class TenantWeights:
    """The relative share of the fleet that each tenant is entitled to, from 0.001 to 1000."""

    by_tenant: Mapping[str, float] = field(default_factory=dict)
    default: float = 1.0

    def __post_init__(self) -> None:
        _check_weight("default", self.default)
        for tenant, weight in self.by_tenant.items():
            _check_weight(f"by_tenant[{tenant!r}]", weight)

    def of(self, tenant: str) -> float:
        """Return the tenant's own weight, or the default."""
        return self.by_tenant.get(tenant, self.default)


def _check_weight(name: str, weight: float) -> None:
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise ValueError(f"{name} is {weight}; accepted: from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}")


def virtual_tokens(prompt_tokens: int, output_tokens: float, weight: float) -> float:
    """Return a request's charge: its work in prompt tokens, divided by its tenant's weight."""
    _check_weight("weight", weight)
    return (prompt_tokens + OUTPUT_WEIGHT * output_tokens) / weight


def allowed_lead(waiting_s: float, band: float, patience_s: float = math.inf) -> float:
    """Return the lead in virtual tokens with which a tenant may join a queue of `waiting_s` seconds of work.

    `patience_s` is the time to first token that the request asks for.
    """
    free_s, full_s = min(FREE_S, FREE_PART * patience_s), min(FULL_S, FULL_PART * patience_s)
    if waiting_s <= free_s:
        return math.inf
    return band * max(0.0, (full_s - waiting_s) / (full_s - free_s))


@value
class Standing:
    """A tenant's counters in virtual tokens: after its charge, or uncharged if it is over its share."""

    counter: float
    least: float | None
    """The counter that it is compared with: the least among the other active tenants, or the greatest minus
    the band, whichever is more. None if there are no others."""
    others: int
    """Active tenants besides this one."""
    is_over: bool

    def catch_up_s(self, lead: float, rate: float) -> float:
        """Return the seconds until the others have caught up to within `lead`; 0 within its share.

        They are assumed to share `rate` virtual tokens per second evenly.
        """
        if self.least is None:
            return 0.0
        return max(0.0, self.counter - self.least - lead) * self.others / rate


def is_over_share(counter: float, least: float | None, lead: float) -> bool:
    """Return True if a tenant is more than `lead` virtual tokens ahead of the least served active one."""
    return least is not None and counter - least > lead


def check_charge(tokens: float, lead: float = 0.0, band: float = math.inf) -> None:
    """Raise `ValueError` for values that would lower a counter or make it invalid."""
    if not 0 <= tokens < math.inf:
        raise ValueError(f"tokens is {tokens}; accepted: finite, from 0")
    if not lead >= 0:
        raise ValueError(f"lead is {lead}; accepted: from 0, infinite for no limit")
    if not band > 0:
        raise ValueError(f"band is {band}; accepted: above 0, infinite for none")


@dataclass(slots=True)
class _Active:
    counter: float
    until_ms: int


class TokenCounters:
    """The counters of one fleet's tenants. Times are milliseconds of a clock that never runs backwards.

    They keep the active tenants, and the idle ones that are ahead of them. Once no tenant is active, all are
    forgotten: there is no other tenant to be fair to.
    """

    def __init__(self) -> None:
        self._active: dict[str, _Active] = {}
        self._debts: dict[str, float] = {}
        self._charges: dict[str, tuple[float, int]] = {}
        """Tokens that requests with names were charged, and until when that is remembered; oldest first."""

    def __len__(self) -> int:
        return len(self._active) + len(self._debts)

    def charge(
        self,
        tenant: str,
        tokens: float,
        lead: float,
        now_ms: int,
        band: float = math.inf,
        request: str = "",
    ) -> Standing:
        """Charge a request, once if it has a name, unless its tenant leads by more than `lead`.

        The tenant is active either way.
        """
        check_charge(tokens, lead, band)
        self._forget(now_ms)
        least = min((other.counter for name, other in self._active.items() if name != tenant), default=None)
        mine = self._active.get(tenant)
        counter = max(self._debts.pop(tenant, 0.0), least or 0.0) if mine is None else mine.counter
        floor = max((active.counter for active in self._active.values()), default=0.0) - band
        counter = max(counter, floor)
        if least is not None:
            least = max(least, floor)
        has_paid = request in self._charges
        is_over = not has_paid and is_over_share(counter, least, lead)
        if not is_over and not has_paid:
            counter += tokens
            if request:
                self._charges[request] = tokens, now_ms + CHARGED_MS
        self._active[tenant] = _Active(counter, now_ms + ACTIVE_MS)
        return Standing(counter, least, len(self._active) - 1, is_over)

    def refund(self, tenant: str, tokens: float, now_ms: int, request: str = "") -> None:
        """Take back the charge of a request that was not admitted in the end. An idle tenant gets nothing.

        A request with a name gets back what it was charged, once.
        """
        check_charge(tokens)
        self._forget(now_ms)
        if request:
            tokens, _ = self._charges.pop(request, (0.0, 0))
        mine = self._active.get(tenant)
        if mine is not None:
            mine.counter -= min(tokens, mine.counter)

    def _forget(self, now_ms: int) -> None:
        while self._charges and next(iter(self._charges.values()))[1] <= now_ms:
            del self._charges[next(iter(self._charges))]
        idle = {name: active.counter for name, active in self._active.items() if active.until_ms <= now_ms}
        for name in idle:
            del self._active[name]
        self._debts |= idle
        # Without active tenants, there is no one to be ahead of.
        least = min((active.counter for active in self._active.values()), default=math.inf)
        self._debts = {name: lead for name, lead in self._debts.items() if lead > least}
        if len(self._debts) > MAX_DEBTS:
            largest = sorted((lead, name) for name, lead in self._debts.items())[-MAX_DEBTS:]
            self._debts = {name: lead for lead, name in largest}


# Seats


def share_of(seats: int, weight: float) -> int:
    """Return what so many seats count for a tenant of this weight; at least 1."""
    return max(1, round(seats * SEAT_SHARE / weight))


def takes_turns(aim: Slo, *, has_output: bool) -> bool:
    """Return True if a request may be passed by one of a tenant with fewer seats: no promise is broken."""
    return (aim.pace_ms if has_output else aim.ttft_ms) is None


def may_yield(holder_seats: int, yielded: int, waiter_seats: int, wanted: int) -> bool:
    """Return True if a tenant may lose seats to another one, and holds at least as many even then.

    All are seats per weight; `yielded` and `wanted` are those of the two requests.
    """
    return holder_seats - yielded >= waiter_seats + wanted


class TenantSums:
    """A sum for each tenant that has one above 0."""

    def __init__(self) -> None:
        self._sums: Counter[str] = Counter()

    def add(self, tenant: str, change: int) -> None:
        """Change a tenant's sum."""
        self._sums[tenant] += change
        if not self._sums[tenant]:
            del self._sums[tenant]

    def of(self, tenant: str) -> int:
        """Return a tenant's sum."""
        return self._sums[tenant]

    def has_others(self, tenant: str) -> bool:
        """Return True if some other tenant has a sum."""
        return len(self._sums) > (tenant in self._sums)


class SeatTurns:
    """The waiting requests by tenant and class, and the seats that each tenant holds."""

    def __init__(self) -> None:
        self._lanes: dict[int, dict[str, list[Place]]] = {}
        self._firm: dict[int, list[Place]] = {}
        self._shares: dict[str, tuple[int, int]] = {}
        """The count of a request's seats, and when they expire, by request key."""
        self._soonest = NEVER
        self._held = TenantSums()

    def join(self, slo_class: int, place: Place, *, takes_turns: bool) -> None:
        """Add a waiting request."""
        insort(self._lane(slo_class, place, takes_turns=takes_turns), place)

    def leave(self, slo_class: int, place: Place, *, takes_turns: bool) -> None:
        """Remove a waiting request."""
        lane = self._lane(slo_class, place, takes_turns=takes_turns)
        del lane[bisect_left(lane, place)]
        if takes_turns and not lane:
            del self._lanes[slo_class][tenant_of(place[1])]

    def _lane(self, slo_class: int, place: Place, *, takes_turns: bool) -> list[Place]:
        if not takes_turns:
            return self._firm.setdefault(slo_class, [])
        return self._lanes.setdefault(slo_class, {}).setdefault(tenant_of(place[1]), [])

    def next(self, slo_class: int, most: int, may_go: Callable[[Place], bool]) -> Place | None:
        """Return the place that has the turn; None if it is none of the first `most` tenants'."""
        firm = self._firm.get(slo_class)
        for place in self._in_turn(slo_class)[:most]:
            if may_go(place) and not (firm and firm[0] < place):
                return place
        return None

    def _in_turn(self, slo_class: int) -> list[Place]:
        heads = ((self._held.of(tenant), lane[0]) for tenant, lane in self._lanes.get(slo_class, {}).items())
        return [place for _, place in sorted(heads)]

    def take(self, request_key: str, share: int, expiry: int) -> None:
        """Count the seats of a request until they expire; seats that it holds already count once."""
        own, own_expiry = self._shares.get(request_key, (0, 0))
        self._shares[request_key] = (share, max(own_expiry, expiry))
        self._soonest = min(self._soonest, expiry)
        self._held.add(tenant_of(request_key), share - own)

    def keep(self, request_key: str, expiry: int) -> None:
        """Let the seats of a request expire later, if it holds any."""
        if request_key in self._shares:
            share, own_expiry = self._shares[request_key]
            self._shares[request_key] = (share, max(own_expiry, expiry))

    def drop(self, request_key: str) -> None:
        """Stop counting the seats of a request, if it holds any."""
        share, _ = self._shares.pop(request_key, (0, 0))
        self._held.add(tenant_of(request_key), -share)

    def purge(self, now: int) -> None:
        """Drop the seats that have expired."""
        if now < self._soonest:
            return
        for request_key in [key for key, (_, expiry) in self._shares.items() if expiry <= now]:
            self.drop(request_key)
        self._soonest = min((expiry for _, expiry in self._shares.values()), default=NEVER)


def tenant_of(request_key: str) -> str:
    """Return the tenant that a request key begins with."""
    return request_key.partition("/")[0] if "/" in request_key else ""
