"""One at a time, tenants in turns: one that asks for much waits for itself, and others for one turn of it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairTurns:
    """A lock that waiting tenants get in turns, each its waiters in the order in which they came."""

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._holder: str | None = None
        """The tenant that has the turn."""
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """By tenant; the first tenant is next."""

    def is_full(self, tenant: str) -> bool:
        """Return True if the tenant has as many waiters as its share of all that may wait."""
        own = len(self._waiting.get(tenant, ()))
        num_tenants = len(self._waiting.keys() | {tenant})
        return own >= max(1, self._max_waiting // num_tenants)

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a turn, and hold it."""
        await self._take(tenant)
        try:
            yield
        finally:
            self._give()

    async def _take(self, tenant: str) -> None:
        if self._holder is None:
            self._holder = tenant
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(tenant, turn)
            else:  # given in the same moment
                self._give()
            raise

    def _leave(self, tenant: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(tenant, deque())
        if turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[tenant]

    def _give(self) -> None:
        """Give the turn to the next waiter, past those that were cancelled and have not left yet."""
        if self._holder is not None and self._holder in self._waiting:
            self._waiting.move_to_end(self._holder)
        self._holder = None
        while self._waiting and self._holder is None:
            tenant, turns = next(iter(self._waiting.items()))
            turn = turns.popleft()
            if not turns:
                del self._waiting[tenant]
            if not turn.done():
                turn.set_result(None)
                self._holder = tenant
