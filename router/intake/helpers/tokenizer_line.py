"""The order of the tokenizer processes: tenants take turns, each with its shortest or its oldest text.

Each tenant gets the same share of the processes' time, in bytes, while it has texts that wait: the tenant
that has had the least goes next (start-time fair queueing: Goyal et al., SIGCOMM 1996). So one that sends
much waits for itself, and others for the one text of it that is being tokenised.

Within a tenant, half of the time goes to the shortest text and half to the oldest. In order of arrival, a
short text would wait for every long one before it. With the shortest first, a long text would wait for as
long as short ones arrive. Texts of about the same length stay in order of arrival.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Container
from dataclasses import dataclass, field

NUM_CLASSES = 32
"""The number of size classes; the size doubles from one class to the next."""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """One text's place in the line."""

    tenant: str
    size: int
    number: int
    """The number of its arrival."""


class _TenantLine:
    """The waiting texts of one tenant, and how much of the processes' time it has had."""

    def __init__(self) -> None:
        self._classes: list[OrderedDict[int, Place]] = [OrderedDict() for _ in range(NUM_CLASSES)]
        self._sizes = [0] * NUM_CLASSES
        """The sum of sizes in each class."""
        self._balance = 0
        """Work served because it was the oldest, minus work served because it was the shortest."""

    @property
    def size(self) -> int:
        return sum(self._sizes)

    @property
    def is_empty(self) -> bool:
        return not any(self._classes)

    def join(self, place: Place) -> None:
        self._classes[_class_of(place.size)][place.number] = place
        self._sizes[_class_of(place.size)] += place.size

    def leave(self, place: Place) -> bool:
        """Give up a place; return False if it was taken already."""
        if self._classes[_class_of(place.size)].pop(place.number, None) is None:
            return False
        self._sizes[_class_of(place.size)] -= place.size
        return True

    def take(self) -> Place:
        """Remove and return the next place; there is one."""
        heads = [next(iter(waiting.values())) for waiting in self._classes if waiting]
        shortest, oldest = heads[0], min(heads, key=lambda place: place.number)
        chosen = shortest if self._balance >= 0 else oldest
        if shortest is not oldest:
            self._balance += chosen.size if chosen is oldest else -chosen.size
        self.leave(chosen)
        return chosen

    def before(self, size: int) -> int:
        not_longer = sum(self._sizes[: _class_of(size) + 1])
        return min(self.size, 2 * not_longer)


@dataclass(slots=True)
class _Shares:
    """How much work each tenant has had. What idle tenants had is remembered for some of them."""

    had: dict[str, int] = field(default_factory=dict)
    least: int = 0
    """Where a tenant begins that comes now: what the tenant had had that was served last."""

    def begin(self, tenant: str) -> int:
        return max(self.least, self.had.get(tenant, 0))

    def add(self, tenant: str, begun: int, size: int) -> None:
        self.least, self.had[tenant] = max(self.least, begun), begun + size

    def forget(self, waiting: Container[str]) -> None:
        """Forget the half of the idle tenants that has had the least, as if all of it had had as much.

        So tenants that come once each, however many, pass none of the others for ever.
        """
        idle = sorted((had, name) for name, had in self.had.items() if name not in waiting)
        for had, name in idle[: len(idle) // 2]:
            del self.had[name]
            self.least = max(self.least, had)


MOST_IDLE = 128
"""Tenants without a text that waits of which it is remembered how much they had."""


class TokenizerLine:
    """The waiting texts of all tenants. Sizes are in any unit of work, at least 1."""

    def __init__(self) -> None:
        self._lines: dict[str, _TenantLine] = {}
        """Those of tenants with texts that wait."""
        self._turns: list[tuple[int, int, str, _TenantLine]] = []
        """A heap of what each tenant has had, the number of its turn, its name and its line. Entries of lines
        that are not waiting any more are dropped at the head."""
        self._shares = _Shares()
        self._arrived = 0
        self._given = 0
        self._num_waiting = 0
        self.size = 0
        """The sum of all sizes."""

    def __len__(self) -> int:
        return self._num_waiting

    @property
    def num_tenants(self) -> int:
        """Tenants with texts that wait."""
        return len(self._lines)

    def size_of(self, tenant: str) -> int:
        """Return the sum of a tenant's sizes."""
        line = self._lines.get(tenant)
        return 0 if line is None else line.size

    def join(self, tenant: str, size: int) -> Place:
        """Take the last place among the tenant's texts of this size."""
        self._arrived += 1
        place = Place(tenant, size, self._arrived)
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = _TenantLine()
            self._give_turn(tenant, line)
        line.join(place)
        self._num_waiting += 1
        self.size += size
        return place

    def _give_turn(self, tenant: str, line: _TenantLine) -> None:
        self._given += 1
        heapq.heappush(self._turns, (self._shares.begin(tenant), self._given, tenant, line))

    def leave(self, place: Place) -> None:
        """Give up a place; no error if it was taken already."""
        line = self._lines.get(place.tenant)
        if line is not None and line.leave(place):
            self._left(place, line)

    def _left(self, place: Place, line: _TenantLine) -> None:
        self._num_waiting -= 1
        self.size -= place.size
        if line.is_empty:
            del self._lines[place.tenant]
        if not self._lines:
            self._turns, self._shares = [], _Shares()

    def take(self) -> Place | None:
        """Remove and return the next place; None if the line is empty."""
        while self._turns:
            begun, _, tenant, line = heapq.heappop(self._turns)
            if self._lines.get(tenant) is not line:
                continue
            place = line.take()
            self._shares.add(tenant, begun, place.size)
            self._left(place, line)
            if tenant in self._lines:
                self._give_turn(tenant, line)
            if len(self._shares.had) > MOST_IDLE + len(self._lines):
                self._shares.forget(self._lines)
            return place
        return None

    def before(self, tenant: str, size: int) -> int:
        """Return the work before a newcomer of this size, if nothing arrives after it.

        While its own tenant's texts before it are tokenised, each other tenant gets as much.
        """
        line = self._lines.get(tenant)
        own = 0 if line is None else line.before(size)
        own_size = 0 if line is None else line.size
        num_others = len(self._lines) - (line is not None)
        return own + min(self.size - own_size, num_others * (own + size))


def _class_of(size: int) -> int:
    return min(NUM_CLASSES, max(1, size.bit_length())) - 1
