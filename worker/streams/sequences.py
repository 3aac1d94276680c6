"""The sequences a worker runs: whose they are, and what they are called on either side.

Routers draw handles per stream, so two of them may use the same one; the engine's are drawn here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from kvtransfer.fence import GroupKey, group_key, supersedes
from scheduling.request import Fence
from worker.streams.session import RouterSession


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
        self._by_group: dict[GroupKey, list[Running]] = {}

    def __len__(self) -> int:
        return len(self._by_handle)

    def add(self, session: RouterSession, router_handle: int, fence: Fence) -> Running:
        running = Running(next(self._next_handle), router_handle, fence, session)
        self._by_handle[running.handle] = running
        self._by_router[session, router_handle] = running
        self._by_group.setdefault(group_key(fence), []).append(running)
        return running

    def get(self, handle: int) -> Running | None:
        return self._by_handle.get(handle)

    def of_router(self, session: RouterSession, router_handle: int) -> Running | None:
        return self._by_router.get((session, router_handle))

    def rivals_of(self, fence: Fence) -> list[Running]:
        """Attempts of the same choices that end with this one, those among them that have not been freed."""
        return [one for one in self._by_group.get(group_key(fence), ()) if supersedes(fence, one.fence)]

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
        group = self._by_group[group_key(running.fence)]
        group.remove(running)
        if not group:
            del self._by_group[group_key(running.fence)]
