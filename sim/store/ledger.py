"""The resources that requests hold on a worker: prompt tokens bound to it, or blocks leased on it."""

from __future__ import annotations

NEVER = 1 << 62


class Ledger:
    """Amounts by request, each until it expires, in milliseconds."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[int, int]] = {}
        self._soonest = NEVER
        self.total = 0

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, request_key: str) -> bool:
        return request_key in self._held

    def purge(self, now: int) -> Ledger:
        """Drop expired amounts and return the ledger."""
        if now >= self._soonest:
            for key in [key for key, (_, expiry) in self._held.items() if expiry <= now]:
                self.drop(key)
            self._soonest = min((expiry for _, expiry in self._held.values()), default=NEVER)
        return self

    def put(self, request_key: str, amount: int, expiry: int) -> None:
        """Set a request's amount."""
        self.drop(request_key)
        self._held[request_key] = (amount, expiry)
        self._soonest = min(self._soonest, expiry)
        self.total += amount

    def has_room(self, request_key: str, amount: int, most_amount: int, most_requests: int) -> bool:
        """Return True if a request may hold this amount; what it holds already counts once."""
        fits = self.total - self.amount(request_key) + amount <= most_amount
        return fits and len(self) - (request_key in self) < most_requests

    def put_at_least(self, request_key: str, amount: int, expiry: int) -> None:
        """Raise a request's amount and expiry to at least these."""
        own, own_expiry = self._held.get(request_key, (0, 0))
        self.put(request_key, max(own, amount), max(own_expiry, expiry))

    def keep(self, request_key: str, expiry: int) -> None:
        """Extend a request's amount, if it has one."""
        found = self._held.get(request_key)
        if found is not None:
            self._held[request_key] = (found[0], expiry)
            self._soonest = min(self._soonest, expiry)

    def drop(self, request_key: str) -> bool:
        """Drop a request's amount; return True if there was one."""
        found = self._held.pop(request_key, None)
        if found is None:
            return False
        self.total -= found[0]
        return True

    def amount(self, request_key: str) -> int:
        """Return a request's amount, 0 if it has none."""
        return self._held.get(request_key, (0, 0))[0]

    def amounts(self) -> dict[str, int]:
        """Return all amounts."""
        return {key: amount for key, (amount, _) in self._held.items()}
