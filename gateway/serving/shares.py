"""Fair shares of a total, without knowing who will come, and the room that a request takes of one."""

from __future__ import annotations

from collections import Counter
from typing import Self

from gateway.serving.errors import ApiError, Problem

WHOLE = 1.0
"""The weight of a caller who has proven a credential, or needs none."""
UNPROVEN = 1 / 8
"""The weight of all callers together who have proven nothing."""


def most_for(total: int, held_by_all: int, held: int, weight: float = WHOLE) -> int:
    """Return how much a caller may hold: its weight times what is free beside the caller's own.

    One caller alone may hold half of the total, two callers a third each, and what is left over shrinks as
    more come: there is always something for the next one.
    """
    free = total - (held_by_all - held)
    return int(free * weight / (1 + weight))


class Shares:
    """The shares that callers hold of a total: bytes, or connections."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._held: Counter[str] = Counter()
        self._sum = 0

    @property
    def held(self) -> int:
        return self._sum

    def held_by(self, caller: str) -> int:
        return self._held[caller]

    def take(self, caller: str, amount: int, weight: float = WHOLE) -> bool:
        """Take an amount, and return True, unless the caller's share is smaller."""
        held = self._held[caller]
        if held + amount > most_for(self._total, self._sum, held, weight):
            return False
        self._held[caller] = held + amount
        self._sum += amount
        return True

    def give_back(self, caller: str, amount: int) -> None:
        """Give back what was taken."""
        self._sum -= amount
        self._held[caller] -= amount
        if not self._held[caller]:
            del self._held[caller]


class Room:
    """The part of its caller's share that one body or file takes."""

    def __init__(self, shares: Shares, caller: str, weight: float = WHOLE) -> None:
        self._shares = shares
        self._caller = caller
        self._weight = weight
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def has_grown(self, amount: int) -> bool:
        """Take more, and return True, if there is as much."""
        if not self._shares.take(self._caller, amount, self._weight):
            return False
        self._size += amount
        return True

    def grow(self, amount: int) -> None:
        """Take more. Raises `ApiError` if there is not as much."""
        if not self.has_grown(amount):
            held = self._shares.held_by(self._caller)
            message = f"{amount} bytes have no room beside {held} of this caller that are in work; come back"
            status, kind = (429, "rate_limit_error") if held else (503, "overloaded_error")
            raise ApiError(Problem(status, kind, message, code="too_many_bytes", retry_after_s=1.0))

    def grow_to(self, size: int) -> None:
        """Take what is missing to a size. Raises `ApiError` if there is not as much."""
        if size > self._size:
            self.grow(size - self._size)

    def give_back(self) -> None:
        """Give back everything."""
        if self._size:
            self._shares.give_back(self._caller, self._size)
            self._size = 0
