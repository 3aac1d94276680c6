"""The connections of a gateway: how many there may be, and which idle one is closed for others."""

from __future__ import annotations

from typing import Protocol

from gateway.serving.shares import Shares


class Closable(Protocol):
    """A connection, as far as the pool knows it."""

    def make_room(self) -> None: ...


class Pool:
    """The open connections, fair by address: one address alone may have half of them.

    A connection is idle while no request of it is served, so also before its first one.
    """

    def __init__(self, max_connections: int, max_idle: int) -> None:
        self._max_idle = max_idle
        self._shares = Shares(max_connections)
        self._addresses: dict[Closable, str] = {}
        self._idle: dict[Closable, str] = {}
        """In the order in which they became idle."""

    def enter(self, connection: Closable, address: str) -> bool:
        """Return whether a new connection may stay. An idle one of its address is closed if need be."""
        if not self._shares.take(address, 1):
            oldest = next((idle for idle, of in self._idle.items() if of == address), None)
            if oldest is None:
                return False
            self._close(oldest)
            return self.enter(connection, address)
        self._addresses[connection] = address
        self.idle(connection)
        return True

    def leave(self, connection: Closable) -> None:
        """Forget a connection that is closed."""
        address = self._addresses.pop(connection, None)
        if address is not None:
            self._idle.pop(connection, None)
            self._shares.give_back(address, 1)

    def busy(self, connection: Closable) -> None:
        self._idle.pop(connection, None)

    def idle(self, connection: Closable) -> None:
        """Put a connection behind all that are idle, and close the first of too many."""
        if connection in self._addresses:
            self._idle[connection] = self._addresses[connection]
        if len(self._idle) > self._max_idle:
            self._close(next(iter(self._idle)))

    def _close(self, connection: Closable) -> None:
        self.leave(connection)
        connection.make_room()
