"""Calls that are still being checked and tokenised: the core does not know them yet, but a `Cancel` may."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

Name = tuple[str, str]
"""(tenant, request id)"""


@dataclass(slots=True, eq=False)
class Arrival:
    """One call on its way to the core."""

    cancelled: bool = False


class PendingCalls:
    """Who is on the way; several calls of one name may be."""

    def __init__(self) -> None:
        self._by_name: dict[Name, set[Arrival]] = {}

    @contextlib.contextmanager
    def entered(self, name: Name) -> Iterator[Arrival]:
        """A call comes in, until the block ends."""
        arrival = Arrival()
        self._by_name.setdefault(name, set()).add(arrival)
        try:
            yield arrival
        finally:
            self._by_name[name].discard(arrival)
            if not self._by_name[name]:
                del self._by_name[name]

    def cancel(self, name: Name) -> bool:
        """Whoever is on the way under this name ends as soon as it arrives; False when nobody is."""
        arrivals = self._by_name.get(name, ())
        for arrival in arrivals:
            arrival.cancelled = True
        return bool(arrivals)
