"""Which attempts a process still listens to: of every group of choices, only the newest it has heard of.

a later session            ends all attempts of earlier ones, whichever router they are of
the same, the same router  a later attempt ends the earlier ones
the same, another router   neither is newer: they do not know of each other, and both run
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from kvtransfer.errors import StaleFenceError
from scheduling.request import Fence

GroupKey = tuple[str, str, int]


def group_key(fence: Fence) -> GroupKey:
    """Attempts with the same key compete."""
    return (fence.tenant, fence.request_id, fence.choice)


def supersedes(fence: Fence, older: Fence) -> bool:
    """Whether `older`, of the same group and admitted before `fence`, ends with it."""
    return older.session < fence.session or older.router_id == fence.router_id


@dataclass(slots=True)
class _Newest:
    """Of one group."""

    session: int
    attempts: dict[str, int] = field(default_factory=dict)
    """By router."""


class FenceGuard:
    """Remembers the newest session and its attempts of the groups heard of last, bounded in number."""

    def __init__(self, capacity: int = 65_536) -> None:
        self._capacity = capacity
        self._newest: OrderedDict[GroupKey, _Newest] = OrderedDict()

    def admit(self, fence: Fence) -> None:
        """Makes `fence` the newest of its group, beside those of other routers in the same session.

        Raises StaleFenceError when one as new or newer has been admitted: an attempt starts once.
        """
        key = group_key(fence)
        newest = self.newest(fence)
        if newest is not None and (fence.session, fence.attempt) <= newest:
            raise StaleFenceError(fence, *newest)
        if key not in self._newest or fence.session > self._newest[key].session:
            self._newest[key] = _Newest(fence.session)
        self._newest[key].attempts[fence.router_id] = fence.attempt
        self._newest.move_to_end(key)
        if len(self._newest) > self._capacity:
            self._newest.popitem(last=False)

    def newest(self, fence: Fence) -> tuple[int, int] | None:
        """The newest (session, attempt) admitted that this fence competes with; None when there is none."""
        newest = self._newest.get(group_key(fence))
        if newest is None:
            return None
        if newest.session != fence.session:
            return newest.session, max(newest.attempts.values())
        attempt = newest.attempts.get(fence.router_id)
        return None if attempt is None else (newest.session, attempt)
