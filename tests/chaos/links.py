"""Links to a process, and the part of a link that one caller uses: what passes there, and how late."""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import Callable, Iterator
from typing import Any


class Way(enum.Enum):
    """A direction of a link."""

    THERE = "there"
    """From the caller to the process that it has dialled."""
    BACK = "back"


BOTH_WAYS = tuple(Way)


class _Passage:
    """Lets messages through in both directions, or holds them up."""

    def __init__(self) -> None:
        self._closed: set[Way] = set()
        self._opened = asyncio.Event()
        self._takes_datagrams = True
        self._num_held = 0

    @property
    def is_closed(self) -> bool:
        return bool(self._closed)

    def close(self, ways: tuple[Way, ...], *, datagrams: bool = True) -> None:
        self._closed |= set(ways)
        self._takes_datagrams = not datagrams

    def open(self) -> int:
        """Let everything pass again; return how many messages and datagrams did not pass meanwhile."""
        self._closed.clear()
        self._takes_datagrams = True
        self._opened.set()
        self._opened = asyncio.Event()
        held, self._num_held = self._num_held, 0
        return held

    async def through(self, way: Way) -> None:
        """Wait until what came may go on."""
        if way in self._closed:
            self._num_held += 1
        while way in self._closed:
            await self._opened.wait()

    def takes_datagram(self, way: Way) -> bool:
        """Return False if a datagram is lost here."""
        is_lost = way in self._closed and not self._takes_datagrams
        self._num_held += is_lost
        return not is_lost


class Link:
    """The part that all proxies share. Without a caller, methods are about all callers at once."""

    def __init__(self) -> None:
        self._whole = _Passage()
        self._by_caller: dict[str, _Passage] = {}
        self.delay_s = 0.0
        self._pumps: dict[asyncio.Task[Any], str] = {}
        """The tasks that forward, and the caller of each."""

    def _passage(self, caller: str | None) -> _Passage:
        return self._whole if caller is None else self._by_caller.setdefault(caller, _Passage())

    async def passage(self, caller: str, way: Way) -> None:
        """Wait until what came may go on."""
        if self.delay_s > 0:
            await asyncio.sleep(self.delay_s)
        await self._whole.through(way)
        await self._passage(caller).through(way)

    def forward(self, send: Callable[[], None], caller: str, way: Way) -> None:
        """Do `send` when the link lets it through; what finds it closed is lost, as a datagram is."""
        if all(passage.takes_datagram(way) for passage in (self._whole, self._passage(caller))):
            asyncio.get_running_loop().call_later(self.delay_s, send)

    def freeze(
        self, caller: str | None = None, ways: tuple[Way, ...] = BOTH_WAYS, *, datagrams: bool = True
    ) -> None:
        """Nothing comes through these ways, or nothing but datagrams, and nobody is told."""
        self._passage(caller).close(ways, datagrams=datagrams)

    def cut(self, caller: str | None = None) -> int:
        """Break whatever is under way, and return how much that was.

        Each breaks once: broken off again while it says so, it would say nothing.
        """
        broken = [task for task, whose in self._pumps.items() if caller in (None, whose)]
        for task in broken:
            del self._pumps[task]
            task.cancel()
        return len(broken)

    def heal(self, caller: str | None = None) -> int:
        """Let everything pass again, and return how many messages and datagrams did not pass meanwhile.

        Connections that stood still break: their bytes are too old.
        """
        if caller is None:
            self.delay_s = 0.0
        passage = self._passage(caller)
        if passage.is_closed:
            self.cut(caller)
        return passage.open()

    @contextlib.contextmanager
    def pumping(self, caller: str) -> Iterator[None]:
        """Make the running task one that `cut` ends."""
        task = asyncio.current_task()
        assert task is not None
        self._pumps[task] = caller
        try:
            yield
        finally:
            self._pumps.pop(task, None)
