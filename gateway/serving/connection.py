"""One HTTP connection: uvicorn's, with bounds for callers who send or read slowly, or too much.

uvicorn bounds none of these. A request has to arrive within `READ_S`, or at `LEAST_BYTES_PER_S` if it is a
long one; a connection that is closed has `CLOSE_S` to take what was written to it.

Trailers of a chunked body are dropped and counted: what a proxy checks stands in the head. A request to
upgrade is served without upgrading. How many connections there may be is the `Pool`'s to say.

A gateway that leaves says so in its responses (`Connection: close`) and does not close a connection on which
a request may be on its way: it waits until the connection has been idle for `LEAVE_S`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Protocol

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.serving.errors import error_json, invalid, unavailable
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


READ_S = 30.0
LEAST_BYTES_PER_S = 16 << 10
CLOSE_S = 10.0
LEAVE_S = 1.0
"""How long a connection has to be idle before a gateway that leaves closes it."""
MAX_HEAD_BYTES = 64 << 10
MAX_PIPELINED = 100
"""Requests that may wait behind another one of their connection."""
_CHECK_S = 5.0
_UPGRADING = frozenset({b"upgrade", b"connection"})


class Connection(HttpToolsProtocol):
    """Serves the requests of one connection, one after the other."""

    def __init__(self, *args: Any, pool: Pool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pool = pool

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._running: RequestResponseCycle | None = None
        self._on_lost: Callable[[], object] | None = None
        self._reading_since: float | None = self.loop.time()
        self._closing_since: float | None = None
        self._num_heads = self._num_unread = self._num_body = self._parts = 0
        self._in_head = True
        self.is_leaving = False
        """Whether the gateway leaves, and this connection ends with the response that is written."""
        self._checking = self.loop.call_later(_CHECK_S, self._check)
        self.url = b""
        if not self._pool.enter(self, self._peer):
            self._refuse(503, "the gateway has as many connections as it may; come back")

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.leave(self)
        self._checking.cancel()
        self._unset_keepalive_if_required()
        self.pipeline.clear()
        running = self._running
        super().connection_lost(exc)
        if running is not None and not running.response_complete:  # not the newest, if others wait behind it
            running.disconnected = True
            running.message_event.set()
        self._tell_lost()

    def when_lost(self, tell: Callable[[], object]) -> None:
        """Have `tell` called, in place of the one before, if the caller leaves before the response ends."""
        self._on_lost = tell
        if self._running is None or self._running.disconnected:
            self.loop.call_soon(self._tell_lost)

    def _tell_lost(self) -> None:
        tell, self._on_lost = self._on_lost, None
        if tell is not None:
            tell()

    def data_received(self, data: bytes) -> None:
        if self._closing_since is not None or self.transport.is_closing():
            return
        if self._reading_since is None and self._is_idle:
            self._reading_since = self.loop.time()
        self._unset_keepalive_if_required()
        parts = self._parts
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse(400, "the request is not HTTP/1.1, or its head contradicts itself")
            return
        # Data that ends a head, or has a body's bytes, may have more than the part that it ends.
        self._num_unread = self._num_unread + len(data) if self._parts == parts else 0
        if self._num_unread > MAX_HEAD_BYTES:
            what = "head of the request" if self._in_head else "part of the request that is not its body"
            self._refuse(431, f"the {what} is longer than {MAX_HEAD_BYTES} bytes")
        elif len(self.pipeline) > MAX_PIPELINED:
            self.transport.abort()

    def _feed(self, data: bytes) -> None:
        """Parse data. A request to upgrade is served without upgrading, as HTTP allows.

        Raises `HttpParserError`.
        """
        while len(self.pipeline) <= MAX_PIPELINED:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                method, offset = self.parser.get_method(), upgrade.args[0]
                if method == b"CONNECT":
                    raise httptools.HttpParserInvalidMethodError from None
                kept = [(name, value) for name, value in self.headers if name not in _UPGRADING]
                lines = [b"%s %s HTTP/1.1" % (method, self.url), *(b"%s: %s" % header for header in kept)]
                self.parser = httptools.HttpRequestParser(self)
                data = b"\r\n".join(lines) + b"\r\n\r\n" + data[offset:]
            else:
                return

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._reading_since = self.loop.time()
        self._num_heads += 1
        self._parts += 1
        self._num_body = 0
        self._in_head = True
        self.scope["state"]["connection"] = self

    @property
    def is_free(self) -> bool:
        """Whether the response that is written can go on at once, by `write_now`."""
        running = self._running
        return (
            running is not None
            and running.response_started
            and not running.response_complete
            and not running.disconnected
            and bool(running.chunked_encoding)
            and not self.flow.write_paused
        )

    def write_now(self, data: bytes) -> None:
        """Write a part of the response that is written."""
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self.parser.should_upgrade():
            self._pool.busy(self)
            super().on_headers_complete()
            self._in_head = False
            self._parts += 1
            if self.is_leaving:
                self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._num_body += len(body)
        self._parts += 1
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            self._reading_since, self.url = None, b""
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self._on_lost = None
        super().on_response_complete()
        if self._is_idle:
            self._pool.idle(self)
            if self.is_leaving:
                self._leave()

    def timeout_keep_alive_handler(self) -> None:
        if self.is_leaving:
            self.transport.close()
        else:
            self._close()

    def make_room(self) -> None:
        """Close, since nothing is expected on this connection and others are."""
        self._close()

    def shutdown(self) -> None:
        """Leave: respond to what has been sent, and to what is on its way."""
        self.is_leaving = True
        if not self._is_idle:
            if not self.cycle.response_started:
                self.cycle.keep_alive = False
        elif self._num_heads == 0 or self._reading_since is None:
            self._leave()

    def _leave(self) -> None:
        """Close once nothing has come for `LEAVE_S`; at once where the caller only watches this gateway.

        Those who send requests to gateways learn by the end of that connection that this one leaves.
        """
        self._unset_keepalive_if_required()
        watches = self._num_heads > 0 and self.scope["path"] == "/health"
        delay = 0 if watches else LEAVE_S
        self.timeout_keep_alive_task = self.loop.call_later(delay, self.timeout_keep_alive_handler)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    @property
    def _peer(self) -> str:
        return self.client[0] if self.client else ""

    @property
    def _is_idle(self) -> bool:
        return self._running is None or self._running.response_complete

    def _check(self) -> None:
        now = self.loop.time()
        self._checking = self.loop.call_later(_CHECK_S, self._check)
        if self._closing_since is None and self.transport.is_closing():
            self._closing_since = now
        if self._closing_since is not None:
            if now > self._closing_since + CLOSE_S:
                self.transport.abort()
        elif self._reading_since is not None and not self.pipeline:
            if now <= self._reading_since + READ_S + self._num_body / LEAST_BYTES_PER_S:
                return
            if self.url:
                self._refuse(408, "the request did not arrive in time")
            else:
                self._close()

    def _refuse(self, status: int, message: str) -> None:
        """Close the connection, with an error if it is still expected to respond to what is refused."""
        running = self._running
        if running is None or running.response_complete:
            self.transport.write(_error(status, message, self.url))
        elif running is self.cycle and running.more_body and not running.response_started:
            self.transport.write(_error(status, message, self.url))
            running.disconnected = True
            running.message_event.set()
        self._close()

    def _close(self) -> None:
        """Say that nothing follows. What the caller still sends until it closes too is dropped.

        With unread data, closing would reset the connection, and the caller would lose the last response.
        """
        if self._closing_since is None:
            self._closing_since = self.loop.time()
            if self.transport.can_write_eof() and not self.transport.is_closing():
                self.transport.write_eof()
            else:
                self.transport.close()


def _error(status: int, message: str, url: bytes) -> bytes:
    """Return a whole response."""
    if status == 503:
        problem = unavailable(message, code="too_many_connections").problem
    else:
        problem = invalid("", message, status=status, code="malformed_request").problem
    body = json.dumps(error_json(url.decode("latin-1"), problem)).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in {**headers, **problem.headers()}.items())
    return STATUS_LINE[status] + lines.encode() + b"\r\n" + body
