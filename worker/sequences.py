"""The sequences a worker runs: whose they are, and what they are called on either side.

Routers draw handles per stream, so two of them may use the same one; the engine's are drawn here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from kvtransfer.fence import GroupKey, group_key
from scheduling.request import Fence
from worker.session import RouterSession


@dataclass(slots=True)
class Running:
    """One sequence until the engine has freed it."""

    handle: int
    """The engine's."""
    router_handle: int
    fence: Fence
    session: RouterSession
    is_over: bool = False
    """Its router has been told the end, or has asked for it: nothing more is said of it."""


class Sequences:
    def __init__(self) -> None:
        self._next_handle = itertools.count(1)
        self._by_handle: dict[int, Running] = {}
        self._by_router: dict[tuple[RouterSession, int], Running] = {}
        self._by_group: dict[GroupKey, Running] = {}

    def __len__(self) -> int:
        return len(self._by_handle)

    def add(self, session: RouterSession, router_handle: int, fence: Fence) -> Running:
        running = Running(next(self._next_handle), router_handle, fence, session)
        self._by_handle[running.handle] = running
        self._by_router[session, router_handle] = running
        self._by_group[group_key(fence)] = running
        return running

    def get(self, handle: int) -> Running | None:
        return self._by_handle.get(handle)

    def of_router(self, session: RouterSession, router_handle: int) -> Running | None:
        return self._by_router.get((session, router_handle))

    def rival_of(self, fence: Fence) -> Running | None:
        """The attempt of the same choices that was taken in last, if it has not been freed."""
        return self._by_group.get(group_key(fence))

    def of_session(self, session: RouterSession) -> Iterator[Running]:
        return iter([running for running in self._by_handle.values() if running.session is session])

    def has_any_of(self, session: RouterSession) -> bool:
        """Whether anything of this router's is here, ended or not."""
        return any(running.session is session for running in self._by_handle.values())

    def remove(self, handle: int) -> None:
        running = self._by_handle.pop(handle, None)
        if running is None:
            return
        del self._by_router[running.session, running.router_handle]
        if self._by_group.get(group_key(running.fence)) is running:
            del self._by_group[group_key(running.fence)]
