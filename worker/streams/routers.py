"""The routers of a worker: the reports that wait for each, and the sequences that run for it.

Routers choose handles per stream, so two routers may use the same one; the engine's handles are chosen here.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.core.report import Failure, Load, StepReport
from kvtransfer.fence import ChoiceKey, choice_key, supersedes
from scheduling.request import FailureReason, Fence

MAX_OUTBOUND = 1024
"""Reports that may wait for a router; one that is this far behind does not read."""


class RouterSession:
    """A queue of reports: the hub puts them in, the service takes them out. A stalled router is dropped."""

    def __init__(self, router_id: str) -> None:
        self.router_id = router_id
        self.overflowed = asyncio.Event()
        self.last_put_s = 0.0
        self._outbound: deque[StepReport] = deque()
        self._changed = asyncio.Event()
        self._closing = False

    @property
    def is_finished(self) -> bool:
        """True once it is closed and everything has been taken."""
        return self._closing and not self._outbound

    def put(self, report: StepReport, now_s: float) -> None:
        """Put a report whose handles are this router's."""
        self.last_put_s = now_s
        if len(self._outbound) >= MAX_OUTBOUND:
            self.overflowed.set()
            return
        self._outbound.append(report)
        self._changed.set()

    def fail(self, failure: Failure, load: Load, now_s: float) -> None:
        self.put(StepReport(load=load, failures=[failure]), now_s)

    def close(self) -> None:
        """Close the queue: nothing more will be put."""
        self._closing = True
        self._changed.set()

    async def take(self, timeout_s: float) -> StepReport | None:
        """Return the next report; None if none comes for `timeout_s`, or the queue is closed and empty."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self._outbound and not self._closing:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return None
        return self._outbound.popleft() if self._outbound else None


@dataclass(slots=True)
class Running:
    """One sequence until the engine has freed it."""

    handle: int
    """The engine's handle."""
    router_handle: int
    fence: Fence
    choices: Sequence[int]
    """The choices that it covers."""
    session: RouterSession
    is_over: bool = False
    """True once its router knows or has asked for its end: nothing more is reported of it."""


class Sequences:
    """The sequences that run here, by their handles, routers and choices."""

    def __init__(self, idle_load: Load) -> None:
        self.load = idle_load
        """The newest load of the engine, which goes to routers with every report."""
        self._clock = asyncio.get_running_loop().time
        self._next_handle = itertools.count(1)
        self._by_handle: dict[int, Running] = {}
        self._by_router: dict[tuple[RouterSession, int], Running] = {}
        self._by_choice: dict[ChoiceKey, list[Running]] = {}

    def __len__(self) -> int:
        return len(self._by_handle)

    def add(
        self, session: RouterSession, router_handle: int, fence: Fence, choices: Sequence[int]
    ) -> Running:
        running = Running(next(self._next_handle), router_handle, fence, choices, session)
        self._by_handle[running.handle] = running
        self._by_router[session, router_handle] = running
        for choice in running.choices:
            self._by_choice.setdefault(choice_key(fence, choice), []).append(running)
        return running

    def new_handle(self) -> int:
        """Draw a handle that no sequence has, for something else in the engine."""
        return next(self._next_handle)

    def fail(self, handle: int, reason: FailureReason, message: str) -> None:
        """End a sequence for a reason outside the engine; do nothing if it is over already."""
        running = self.get(handle)
        if running is not None and not running.is_over:
            self.report_failure(running, Failure(running.router_handle, reason, message))

    def report_failure(self, running: Running, failure: Failure) -> None:
        """Tell the router of a sequence that it has failed; nothing more is reported of it."""
        running.is_over = True
        running.session.fail(failure, self.load, self._clock())

    def get(self, handle: int) -> Running | None:
        return self._by_handle.get(handle)

    def of_router(self, session: RouterSession, router_handle: int) -> Running | None:
        return self._by_router.get((session, router_handle))

    def rivals_of(self, fence: Fence, choices: Sequence[int]) -> list[Running]:
        """Return the attempts at any of these choices that `fence` ends, unless they have been freed."""
        rivals = {
            running.handle: running
            for choice in choices
            for running in self._by_choice.get(choice_key(fence, choice), ())
            if supersedes(fence, running.fence)
        }
        return list(rivals.values())

    def of_session(self, session: RouterSession) -> Iterator[Running]:
        return iter([running for running in self._by_handle.values() if running.session is session])

    def has_any_of(self, session: RouterSession) -> bool:
        """Return whether any sequence of this router is here, ended or not."""
        return any(running.session is session for running in self._by_handle.values())

    def remove(self, handle: int) -> None:
        running = self._by_handle.pop(handle, None)
        if running is None:
            return
        del self._by_router[running.session, running.router_handle]
        for choice in running.choices:
            key = choice_key(running.fence, choice)
            self._by_choice[key].remove(running)
            if not self._by_choice[key]:
                del self._by_choice[key]
