"""The routers of a client: which one to call next, and how long to retry.

An address whose name stands for several routers, as that of a headless Kubernetes service does, is each of
them, with a connection of its own. Names are looked up again, so routers that come and go are followed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from baton.errors import Unavailable
from baton.wire.transport import Transport


async def resolved(address: str) -> tuple[str, ...]:
    """Return the addresses of HOST:PORT as IP:PORT, sorted, of one family; itself if HOST is no name.

    Where a name has both families, the one with more addresses counts, and the one that the system prefers
    if they have as many. Raises `OSError` if the name cannot be resolved.
    """
    host, _, port = address.rpartition(":")
    if not is_name(address):
        return (address,)
    found = await asyncio.get_running_loop().getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    return of_one_family((family, str(where[0]), int(port)) for family, _, _, _, where in found)


def of_one_family(found: Iterable[tuple[socket.AddressFamily, str, int]]) -> tuple[str, ...]:
    """Return the addresses of the family that has most of them; of the first one where they have as many."""
    families: dict[socket.AddressFamily, set[str]] = {}
    for family, ip, port in found:
        text = f"[{ip}]:{port}" if family == socket.AF_INET6 else f"{ip}:{port}"
        families.setdefault(family, set()).add(text)
    return tuple(sorted(max(families.values(), key=len, default=())))


def is_name(address: str) -> bool:
    """Return whether this is HOST:PORT with a name that can be resolved."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or ":" in host or "/" in host:  # IPv6, or another target of gRPC's
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


T = TypeVar("T")
Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""Returns the addresses behind a name, or raises `OSError`."""
Explain = Callable[[Unavailable, str], Awaitable[Unavailable]]
"""Find out why a router cannot be reached, and return the error to raise. The text is the name that it was
looked up by, or empty.
"""

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
# For this long after a failure, a router is called only if all others have failed too.
_SHUNNED_S = 1.0
# Names are looked up again after this time, or after the second one if a router has failed since.
_LOOK_S = 5.0
_LOOK_AFTER_FAILURE_S = 1.0
# A call waits this long for names, at a client's first call and where every router has failed.
_LOOK_LIMIT_S = 2.0


@dataclass(slots=True, eq=False)
class _Slot:
    transport: Transport
    failed_at: float = float("-inf")

    def has_failed(self, now: float) -> bool:
        return now - self.failed_at <= _SHUNNED_S


class Routers:
    """One transport per router. Calls go to them in turn.

    `connect` takes a router's address, and the name that it was looked up by, or nothing.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        connect: Callable[[str, str], Transport],
        explain: Explain | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        if not addresses:
            raise ValueError("addresses is empty: name at least one router as host:port")
        if not all(addresses):
            raise ValueError(f"addresses is {list(addresses)}: each must be a router's host:port")
        self._addresses = tuple(addresses)
        self._connect = connect
        self._slots = {
            (place, address): _Slot(connect(address, "")) for place, address in enumerate(addresses)
        }
        """By place in `addresses`, and by router there."""
        self._turn = 0
        self._explain = explain
        self._resolve = resolve
        self._has_many: set[int] = set()
        """Places whose name has stood for several routers."""
        self._looking: asyncio.Task[None] | None = None
        self._looked_at = float("-inf")
        self._failed_since = False

    @property
    def transports(self) -> tuple[Transport, ...]:
        return tuple(slot.transport for slot in self._slots.values())

    async def next(self) -> Transport:
        """Return the next one that has not failed within the last second, else the one that failed first."""
        await self.look()
        now, slots = time.monotonic(), list(self._slots.values())
        turn = [(self._turn + step) % len(slots) for step in range(len(slots))]
        healthy = [index for index in turn if not slots[index].has_failed(now)]
        index = healthy[0] if healthy else min(turn, key=lambda index: slots[index].failed_at)
        self._turn = index + 1
        return slots[index].transport

    def has_other(self, transport: Transport) -> bool:
        """Return whether another one has not failed within the last second."""
        now = time.monotonic()
        return any(
            not slot.has_failed(now) for slot in self._slots.values() if slot.transport is not transport
        )

    def failed(self, transport: Transport) -> None:
        self._failed_since = True
        for slot in self._slots.values():
            if slot.transport is transport:
                slot.failed_at = time.monotonic()

    async def look(self) -> None:
        """Look names up if it is time to, in the background where there are routers to call meanwhile."""
        if self._resolve is None:
            return
        now = time.monotonic()
        is_first = self._looked_at == float("-inf")
        wait_s = _LOOK_AFTER_FAILURE_S if self._failed_since else _LOOK_S
        if self._looking is None and now - self._looked_at > wait_s:
            self._looked_at, self._failed_since = now, False
            self._looking = asyncio.create_task(self._look(self._resolve), name="look up routers")
        looking = self._looking
        if looking is not None and (is_first or all(slot.has_failed(now) for slot in self._slots.values())):
            await asyncio.wait((looking,), timeout=_LOOK_LIMIT_S)

    async def _look(self, resolve: Resolve) -> None:
        try:
            found = [
                key
                for place, address in enumerate(self._addresses)
                for key in await self._routers_at(place, address, resolve)
            ]
            # Transports that are left out end with their last call, which holds them.
            self._slots = {key: self._slots.get(key) or _Slot(self._connected(*key)) for key in found}
        finally:
            self._looking = None

    def _connected(self, place: int, address: str) -> Transport:
        named = self._addresses[place]
        return self._connect(address, "" if address == named else _host(named))

    async def _routers_at(self, place: int, address: str, resolve: Resolve) -> list[tuple[int, str]]:
        """Return the routers at a place: the address itself unless its name stands for several routers."""
        try:
            found = await resolve(address)
        except (OSError, ValueError, OverflowError):  # routers that are known may serve on
            found = ()
        if len(found) > 1:
            self._has_many.add(place)
        if place not in self._has_many:
            return [(place, address)]
        return [(place, each) for each in found] or [key for key in self._slots if key[0] == place]

    async def explained(self, error: Unavailable) -> Unavailable:
        """Return the error to raise when the call gives up because of `error`."""
        if self._explain is None:
            return error
        named = [_host(self._addresses[place]) for place, address in self._slots if address == error.address]
        return await self._explain(error, "" if error.address in self._addresses else "".join(named[:1]))

    async def call_any(self, call: Callable[[Transport], Awaitable[T]], limit_s: float) -> T:
        """Return the result of `call` on any router; it may be repeated without harm.

        Raises `Unavailable` if no router responded for `limit_s`.
        """
        backoff = Backoff(limit_s, self)
        while True:
            transport = await self.next()
            try:
                return await call(transport)
            except Unavailable as error:
                self.failed(transport)
                await backoff.wait_after(error)

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        await asyncio.gather(*(transport.close() for transport in self.transports))


def _host(address: str) -> str:
    return address.rpartition(":")[0]


class Backoff:
    """Pauses between attempts: none until every router has failed once, then longer and longer ones.

    A call gives up after `limit_s` of failures.
    """

    def __init__(self, limit_s: float, routers: Routers) -> None:
        self._limit_s = limit_s
        self._routers = routers
        self._failures = 0
        self._failing_since: float | None = None

    def reset(self) -> None:
        """Start again after a success."""
        self._failures = 0
        self._failing_since = None

    async def wait_after(self, error: Unavailable, least_s: float = 0.0) -> None:
        """Wait until the next attempt, `least_s` or longer. Raise `error`, explained, after the limit."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        left_s = self._failing_since + self._limit_s - now
        self._failures += 1
        rounds, within = divmod(self._failures, len(self._routers.transports))
        pause_s = least_s
        if not within:
            if left_s <= 0:
                raise await self._routers.explained(error)
            longest_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(rounds - 1, 10))
            pause_s = max(least_s, min(left_s, longest_s * random.uniform(0.5, 1.0)))
        if pause_s:
            await asyncio.sleep(pause_s)
