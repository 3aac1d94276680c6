"""The routers of a client: which one to call next, and how long to retry."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from baton.errors import Unavailable
from baton.wire.transport import Connect, Transport

T = TypeVar("T")
Explain = Callable[[Unavailable], Awaitable[Unavailable]]
"""Find out why a router cannot be reached, and return the error to raise."""

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
# For this long after a failure, a router is called only if all others have failed too.
_SHUNNED_S = 1.0


class Routers:
    """One transport per address. Calls go to them in turn."""

    def __init__(self, addresses: Sequence[str], connect: Connect, explain: Explain | None = None) -> None:
        if not addresses:
            raise ValueError("addresses is empty: name at least one router as host:port")
        if not all(addresses):
            raise ValueError(f"addresses is {list(addresses)}: each must be a router's host:port")
        self._transports = [connect(address) for address in addresses]
        self._failed_at = dict.fromkeys(range(len(addresses)), float("-inf"))
        self._turn = 0
        self._explain = explain

    def __len__(self) -> int:
        return len(self._transports)

    @property
    def transports(self) -> tuple[Transport, ...]:
        return tuple(self._transports)

    def next(self) -> Transport:
        """Return the next one that has not failed within the last second, else the one that failed first."""
        now = time.monotonic()
        turn = [(self._turn + step) % len(self) for step in range(len(self))]
        healthy = [index for index in turn if now - self._failed_at[index] > _SHUNNED_S]
        index = healthy[0] if healthy else min(turn, key=self._failed_at.__getitem__)
        self._turn = index + 1
        return self._transports[index]

    def has_other(self, transport: Transport) -> bool:
        """Return whether another one has not failed within the last second."""
        now, own = time.monotonic(), self._transports.index(transport)
        return any(now - at > _SHUNNED_S for index, at in self._failed_at.items() if index != own)

    def failed(self, transport: Transport) -> None:
        self._failed_at[self._transports.index(transport)] = time.monotonic()

    def backoff(self, limit_s: float) -> Backoff:
        """Return the backoff of one call, which gives up after `limit_s` of failures."""
        return Backoff(limit_s, len(self), self.explained)

    async def explained(self, error: Unavailable) -> Unavailable:
        """Return the error to raise when the call gives up because of `error`."""
        return error if self._explain is None else await self._explain(error)

    async def call_any(self, call: Callable[[Transport], Awaitable[T]], limit_s: float) -> T:
        """Return the result of `call` on any router; it may be repeated without harm.

        Raises `Unavailable` if no router responded for `limit_s`.
        """
        backoff = self.backoff(limit_s)
        while True:
            transport = self.next()
            try:
                return await call(transport)
            except Unavailable as error:
                self.failed(transport)
                await backoff.wait_after(error)

    async def close(self) -> None:
        await asyncio.gather(*(transport.close() for transport in self._transports))


class Backoff:
    """Pauses between attempts: none until every router has failed once, then longer and longer ones."""

    def __init__(self, limit_s: float, num_routers: int, explain: Explain) -> None:
        self._limit_s = limit_s
        self._num_routers = num_routers
        self._explain = explain
        self._failures = 0
        self._failing_since: float | None = None

    def reset(self) -> None:
        """Start again after a success."""
        self._failures = 0
        self._failing_since = None

    async def wait_after(self, error: Unavailable) -> None:
        """Wait until the next attempt. Raise `error`, explained, once the limit is reached."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        left_s = self._failing_since + self._limit_s - now
        self._failures += 1
        rounds, within = divmod(self._failures, self._num_routers)
        if within:
            return
        if left_s <= 0:
            raise await self._explain(error)
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(rounds - 1, 10))
        await asyncio.sleep(min(left_s, pause_s * random.uniform(0.5, 1.0)))
