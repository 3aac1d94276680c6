"""Which attempts a process still listens to: of every group of choices, only the newest it has heard of."""

from __future__ import annotations

from collections import OrderedDict

from kvtransfer.errors import StaleFenceError
from scheduling.request import Fence

GroupKey = tuple[str, str, int]


def group_key(fence: Fence) -> GroupKey:
    """Attempts with the same key compete; at most one of them may run."""
    return (fence.tenant, fence.request_id, fence.choice)


class FenceGuard:
    """Remembers the newest (session, attempt) of the groups heard of last, bounded in number."""

    def __init__(self, capacity: int = 65_536) -> None:
        self._capacity = capacity
        self._newest: OrderedDict[GroupKey, tuple[int, int]] = OrderedDict()

    def admit(self, fence: Fence) -> None:
        """Makes `fence` the newest of its group.

        Raises StaleFenceError when one as new or newer has been admitted: an attempt starts once.
        """
        key = group_key(fence)
        newest = self._newest.get(key)
        if newest is not None and (fence.session, fence.attempt) <= newest:
            raise StaleFenceError(fence, *newest)
        self._newest[key] = (fence.session, fence.attempt)
        self._newest.move_to_end(key)
        if len(self._newest) > self._capacity:
            self._newest.popitem(last=False)

    def newest(self, fence: Fence) -> tuple[int, int] | None:
        """The newest (session, attempt) admitted of the fence's group; None when it is not remembered."""
        return self._newest.get(group_key(fence))
