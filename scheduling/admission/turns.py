"""The turns of tenants: the next free seat goes to the tenant that holds the fewest.

A seat is a sequence's place in the batch of a decode worker. Tenants' shares (`shares`) decide who may join a
long queue of prompts. They do not see that seats are scarce: sequences of one tenant may hold all of them for
minutes, while few prompts wait. So the seats are shared as well, without any budget set:

- Within a class, a request that takes turns gives its place to the first request of the tenant that holds the
  fewest seats of the fleet, per weight. Of equals the one whose request is due first goes first, so none is
  passed for ever.
- A request that states a TTFT takes no turns. It keeps its place, since the promise that it got counts on
  that, and no turn passes it. What its tenant may ask for in this way is bounded by the tenants' shares.
- A tenant that has waited for `PATIENCE_S`, and finds no seat, gets one of a tenant that keeps at least as
  many even then (`may_yield`; `router/core/move.py` takes it). Sequences may run for minutes,
  and none of them may end for as long.

With one tenant, requests go in the order of the queue. `state/lua/lanes.lua` and `state/lua/grant.lua` decide
the same in Redis; times grow with the logarithm of the queue and of the number of tenants.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable

from scheduling.request import Slo

SEAT_SHARE = 1000
"""The count of one seat, for a tenant of the weight 1."""
PATIENCE_S = 1.0
"""How long a request waits before a seat is taken for it: ends of sequences are mostly nearer."""

NEVER = 1 << 62

Place = tuple[int, str]
"""Score in the queue, and request key."""


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
