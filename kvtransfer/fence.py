"""Decides which attempts a process still accepts: for every group of choices, only the newest it has seen.

a later session                ends all attempts of earlier sessions, from any router
same session, same router      a later attempt ends the earlier ones
same session, another router   neither is newer: the routers do not know of each other, and both attempts run
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from kvtransfer.errors import StaleFenceError, WrongIncarnationError
from scheduling.request import Fence

GroupKey = tuple[str, str, int]


def group_key(fence: Fence) -> GroupKey:
    """Return the key of the group that an attempt belongs to; attempts of one group compete."""
    return (fence.tenant, fence.request_id, fence.choice)


def supersedes(fence: Fence, older: Fence) -> bool:
    """Return whether `fence` ends `older`, which is in the same group and was admitted before."""
    return older.session < fence.session or older.router_id == fence.router_id


def check_source(fence: Fence, incarnation: str) -> None:
    """Raise WrongIncarnationError unless the fence names this incarnation as its source."""
    if fence.source_incarnation != incarnation:
        raise WrongIncarnationError(fence, "source_incarnation", fence.source_incarnation, incarnation)


def check_target(fence: Fence, incarnation: str) -> None:
    """Raise WrongIncarnationError unless the fence names this incarnation as its target."""
    if fence.target_incarnation != incarnation:
        raise WrongIncarnationError(fence, "target_incarnation", fence.target_incarnation, incarnation)


@dataclass(slots=True)
class _Newest:
    """The newest attempts of one group."""

    session: int
    attempts: dict[str, int] = field(default_factory=dict)
    """The newest attempt by router."""
    begun_s: float | None = None
    """When the last call of the session came; None while that is not known."""


class FenceGuard:
    """Remembers the newest session and its attempts for the `capacity` groups seen last."""

    def __init__(self, capacity: int = 65_536) -> None:
        self._capacity = capacity
        self._newest: OrderedDict[GroupKey, _Newest] = OrderedDict()

    def admit(self, fence: Fence, begun_s: float | None = None) -> None:
        """Make `fence` the newest of its group, beside those of other routers in the same session.

        `begun_s` is when the last call of its session came, on this process's clock; None if that is not
        known. Raises StaleFenceError if one as new or newer was admitted: an attempt starts once.
        """
        key = group_key(fence)
        newest = self.newest(fence)
        if newest is not None and (fence.session, fence.attempt) <= newest:
            raise StaleFenceError(fence, *newest, self._newest[key].begun_s)
        if key not in self._newest or fence.session > self._newest[key].session:
            self._newest[key] = _Newest(fence.session)
        admitted = self._newest[key]
        admitted.attempts[fence.router_id] = fence.attempt
        if begun_s is not None:
            admitted.begun_s = begun_s if admitted.begun_s is None else max(begun_s, admitted.begun_s)
        self._newest.move_to_end(key)
        if len(self._newest) > self._capacity:
            self._newest.popitem(last=False)

    def newest(self, fence: Fence) -> tuple[int, int] | None:
        """Return the newest admitted (session, attempt) that this fence competes with.

        None if there is none.
        """
        newest = self._newest.get(group_key(fence))
        if newest is None:
            return None
        if newest.session != fence.session:
            return newest.session, max(newest.attempts.values())
        attempt = newest.attempts.get(fence.router_id)
        return None if attempt is None else (newest.session, attempt)
