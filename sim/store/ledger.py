"""The resources that requests hold on a worker: prompt tokens bound to it, or leased blocks and seats."""

from __future__ import annotations

NEVER = 1 << 62
_NOTHING = (0, 0, 0)


class Ledger:
    """Amounts and seats by request, each until it expires, in milliseconds."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[int, int, int]] = {}
        self._soonest = NEVER
        self.total = 0
        self.seats = 0

    def __contains__(self, request_key: str) -> bool:
        return request_key in self._held

    def purge(self, now: int) -> Ledger:
        """Drop expired amounts and return the ledger."""
        if now >= self._soonest:
            for key in [key for key, (_, expiry, _) in self._held.items() if expiry <= now]:
                self.drop(key)
            self._soonest = min((expiry for _, expiry, _ in self._held.values()), default=NEVER)
        return self

    def put(self, request_key: str, amount: int, expiry: int, seats: int = 1) -> None:
        """Set a request's amount and seats."""
        self.drop(request_key)
        self._held[request_key] = (amount, expiry, seats)
        self._soonest = min(self._soonest, expiry)
        self.total += amount
        self.seats += seats

    def has_room(self, request_key: str, amount: int, most_amount: int, seats: int, most_seats: int) -> bool:
        """Return True if a request may hold this amount; what it holds already counts once.

        A request with more seats than there are takes all of them.
        """
        own, _, own_seats = self._held.get(request_key, _NOTHING)
        needed = max(1, min(seats, most_seats))
        return self.total - own + amount <= most_amount and self.seats - own_seats + needed <= most_seats

    def put_at_least(self, request_key: str, amount: int, expiry: int, seats: int = 1) -> None:
        """Raise a request's amount, expiry and seats to at least these."""
        own, own_expiry, own_seats = self._held.get(request_key, _NOTHING)
        self.put(request_key, max(own, amount), max(own_expiry, expiry), max(own_seats, seats))

    def keep(self, request_key: str, expiry: int) -> bool:
        """Extend a request's amount; return False if it has none."""
        found = self._held.get(request_key)
        if found is None:
            return False
        self._held[request_key] = (found[0], expiry, found[2])
        self._soonest = min(self._soonest, expiry)
        return True

    def drop(self, request_key: str) -> bool:
        """Drop a request's amount; return True if there was one."""
        found = self._held.pop(request_key, None)
        if found is None:
            return False
        self.total -= found[0]
        self.seats -= found[2]
        return True

    def amount(self, request_key: str) -> int:
        """Return a request's amount, 0 if it has none."""
        return self._held.get(request_key, _NOTHING)[0]

    def amounts(self) -> dict[str, int]:
        """Return all amounts."""
        return {key: amount for key, (amount, _, _) in self._held.items()}
