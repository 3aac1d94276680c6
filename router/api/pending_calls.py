"""Calls that are still being checked and tokenised, so that a `Cancel` reaches them before the core does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

Name = tuple[str, str]
"""(tenant, request id)"""


@dataclass(slots=True, eq=False)
class PendingCall:
    """One call on its way to the core."""

    cancelled: bool = False


class PendingCalls:
    """All pending calls. Several may have the same name."""

    def __init__(self) -> None:
        self._by_name: dict[Name, set[PendingCall]] = {}

    @contextlib.contextmanager
    def track(self, name: Name) -> Iterator[PendingCall]:
        """Track a call until the block ends."""
        call = PendingCall()
        self._by_name.setdefault(name, set()).add(call)
        try:
            yield call
        finally:
            self._by_name[name].discard(call)
            if not self._by_name[name]:
                del self._by_name[name]

    def cancel(self, name: Name) -> bool:
        """Mark all calls of this name: they end when they reach the core. Return False if there is none."""
        calls = self._by_name.get(name, ())
        for call in calls:
            call.cancelled = True
        return bool(calls)
