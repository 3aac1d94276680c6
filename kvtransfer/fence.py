"""Decides which attempts a process still accepts: for every choice of a request, only the newest it has seen.

An attempt covers a group of choices, and competes with every attempt that covers one of them: another router,
or a retry, may divide a request's choices into other groups.

a later session                ends all attempts of earlier sessions, from any router
same session, same router      a later attempt ends the earlier ones, and a later run those of earlier runs
same session, another router   neither is newer: the routers do not know of each other, and both attempts run

A router is one process here. A router that is started again under the same id numbers runs and attempts anew,
so it is another one. A run is one stay of a request at its router: from when the router took the request in
until it forgot it. A request id that is used again after that is a new run.

A session whose work here is over bars no call that came after that. A second use of an id begins with
session 0, and may resume with session 1 at a router, or on a worker, that knows a later session of the use
before.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvtransfer.errors import LaterSessionError, StaleFenceError, WrongIncarnationError
from scheduling.request import Fence

ChoiceKey = tuple[str, str, int]
RouterKey = tuple[str, str]

MAX_ROUTERS = 16
"""Routers remembered for one choice. More meet at one only if routers restart faster than it is forgotten."""


def choice_key(fence: Fence, choice: int) -> ChoiceKey:
    """Return the key of one choice that an attempt covers; attempts that cover the same choice compete."""
    return (fence.tenant, fence.request_id, choice)


def router_key(fence: Fence) -> RouterKey:
    """Return the key of the router process that numbered an attempt."""
    return (fence.router_id, fence.router_incarnation)


def supersedes(fence: Fence, older: Fence) -> bool:
    """Return whether `fence` ends `older`, which covers one of its choices and was admitted before."""
    return older.session < fence.session or router_key(older) == router_key(fence)


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
    """The newest attempts that cover one choice."""

    latest: Fence
    """The attempt of the newest session that was admitted last."""
    begun_s: float
    """When the last call of that session came, as far as is known."""
    over_at: float | None = None
    """When its work here was over; None while it runs."""
    by_router: OrderedDict[RouterKey, Fence] = field(default_factory=OrderedDict)
    """The newest attempt of each router, also of those whose session is over; admitted last comes last."""

    def add(self, fence: Fence, begun_s: float) -> None:
        is_same_session = fence.session == self.latest.session
        self.begun_s = max(begun_s, self.begun_s) if is_same_session else begun_s
        self.latest, self.over_at = fence, None
        router = router_key(fence)
        self.by_router[router] = fence
        self.by_router.move_to_end(router)
        if len(self.by_router) > MAX_ROUTERS:
            self.by_router.popitem(last=False)


class FenceGuard:
    """Remembers the newest session and its attempts for the `capacity` choices seen last."""

    def __init__(self, capacity: int = 65_536) -> None:
        self._capacity = capacity
        self._newest: OrderedDict[ChoiceKey, _Newest] = OrderedDict()

    def admit(self, fence: Fence, choices: Iterable[int], begun_s: float) -> None:
        """Make `fence` the newest of the `choices` it covers, beside those of other routers in its session.

        `begun_s` is when the last call of its session came, on this process's clock. Raises StaleFenceError
        if one as new or newer was admitted for any of the choices: an attempt starts once.
        """
        choice_keys = [choice_key(fence, choice) for choice in choices]
        for key in choice_keys:
            seen = self._check(fence, key, begun_s)
            if seen is not None and _number(seen) == _number(fence):
                raise StaleFenceError(fence, seen)
        for key in choice_keys:
            newest = self._newest.setdefault(key, _Newest(fence, begun_s))
            newest.add(fence, begun_s)
            self._newest.move_to_end(key)
        while len(self._newest) > self._capacity:
            self._newest.popitem(last=False)

    def over(self, fence: Fence, choices: Iterable[int], now: float) -> None:
        """Take in that an admitted attempt occupies nothing any more, however it ended."""
        for choice in choices:
            newest = self._newest.get(choice_key(fence, choice))
            if newest is not None and newest.latest == fence:
                newest.over_at = now

    def check(self, fence: Fence) -> None:
        """Raise StaleFenceError if a newer attempt at the fence's first choice was admitted."""
        self._check(fence, choice_key(fence, fence.choice))

    def _check(self, fence: Fence, key: ChoiceKey, begun_s: float = -math.inf) -> Fence | None:
        """Return the newest attempt of the same router at a choice; None if there was none."""
        newest = self._newest.get(key)
        if newest is None:
            return None
        if fence.session < newest.latest.session and not _came_after(fence, begun_s, newest):
            raise LaterSessionError(fence, newest.latest, newest.begun_s)
        seen = newest.by_router.get(router_key(fence))
        if seen is not None and _number(fence) < _number(seen):
            raise StaleFenceError(fence, seen)
        return seen


def _came_after(fence: Fence, begun_s: float, newest: _Newest) -> bool:
    """Return whether the call of an earlier session came after the work of the latest one was over.

    Nothing says when session 0 was called. Its client learns of the later session and takes the request back.
    """
    return fence.session > 0 and newest.over_at is not None and begun_s > newest.over_at


def _number(fence: Fence) -> tuple[int, int, int]:
    """Return what orders the attempts of one router at one choice."""
    return (fence.run, fence.session, fence.attempt)
