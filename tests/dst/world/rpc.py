"""Calls between processes, with the methods of grpc.aio that the fleet uses.

A server has handlers by name, coroutines that get a request and a context, as servicers have. The handler of
a call whose client goes is cancelled, as grpc.aio does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, NoReturn

import grpc

from tests.dst.world.network import Connection, Network
from tests.dst.world.process import Process

Handler = Callable[[Any, "Context"], Coroutine[Any, Any, Any]]
Servers = dict[str, tuple[Process, dict[str, Handler]]]
"""The process at each address, and its handlers by method."""
STATUS_KEY = "grpc-status-details-bin"


class Aborted(Exception):
    """A handler has ended its call with a status."""


class Context:
    """The server's side of one call."""

    def __init__(self, connection: Connection, server: Process) -> None:
        self._connection = connection
        self._server = server

    async def write(self, message: Any) -> None:
        self._connection.send(self._server, ("message", message), type(message).__name__)

    async def abort(self, code: grpc.StatusCode, details: str = "", status: bytes = b"") -> NoReturn:
        self._connection.send(self._server, ("end", code, details, status), code.name)
        raise Aborted


def error_of(code: grpc.StatusCode, details: str, status: bytes = b"") -> grpc.aio.AioRpcError:
    trailing = grpc.aio.Metadata((STATUS_KEY, status)) if status else grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details)


class Call:
    """The client's side of one call with any number of responses. It begins at once."""

    def __init__(
        self, network: Network, client: Process, servers: Servers, address: str, method: str
    ) -> None:
        self._client = client
        self._messages: deque[Any] = deque()
        self._error: grpc.aio.AioRpcError | None = None
        self._is_over = False
        self._waiter: asyncio.Future[None] | None = None
        found = servers.get(address)
        self._connection: Connection | None = None
        if found is not None:
            server, handlers = found
            self._connection = network.connect(client, server, ("rpc", client.name, server.name, method))
        if self._connection is None:
            client.loop.call_later(0.001, self._broken, f"nothing listens at {address}")
            return
        connection = self._connection
        connection.listen(client, self._hear, self._broken)
        serving: list[asyncio.Task[None]] = []

        def begin(message: Any) -> None:
            work = _serve(handlers[method], message, Context(connection, server), connection, server)
            serving.append(server.loop.spawn(work))

        def end(_: str) -> None:
            for task in serving:
                task.cancel()

        connection.listen(server, begin, end)

    def begin(self, request: Any) -> Call:
        if self._connection is not None:
            self._connection.send(self._client, request, type(request).__name__)
        return self

    def _hear(self, message: Any) -> None:
        match message:
            case ("message", content):
                self._messages.append(content)
            case ("end", code, details, status):
                if code is not grpc.StatusCode.OK:
                    self._error = error_of(code, details, status)
                self._end()
        self._wake()

    def _broken(self, reason: str) -> None:
        if not self._is_over:
            self._error = error_of(grpc.StatusCode.UNAVAILABLE, reason)
            self._end()
            self._wake()

    def _end(self) -> None:
        self._is_over = True
        if self._connection is not None:
            self._connection.close(self._client)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def read(self) -> Any:
        """Return the next message, or `grpc.aio.EOF`. Raises AioRpcError."""
        while not self._messages and not self._is_over:
            self._waiter = self._client.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._messages:
            return self._messages.popleft()
        if self._error is not None:
            raise self._error
        return grpc.aio.EOF

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    def cancel(self) -> None:
        if not self._is_over:
            self._error = error_of(grpc.StatusCode.CANCELLED, "cancelled by the client")
            self._end()
            self._wake()


async def _serve(
    handler: Handler, request: Any, context: Context, connection: Connection, server: Process
) -> None:
    try:
        response = await handler(request, context)
    except Aborted:
        return
    except Exception as error:
        connection.send(server, ("end", grpc.StatusCode.UNKNOWN, repr(error), b""), "UNKNOWN")
        raise
    if response is not None:
        await context.write(response)
    connection.send(server, ("end", grpc.StatusCode.OK, "", b""), "OK")


async def unary(call: Call, timeout_s: float | None) -> Any:
    """Return the only response of a call."""
    try:
        async with asyncio.timeout(timeout_s):
            return await call.read()
    except TimeoutError:
        raise error_of(grpc.StatusCode.DEADLINE_EXCEEDED, "deadline exceeded") from None
    finally:
        call.cancel()


class Stub:
    """Calls of one client to one address: every attribute is a method."""

    def __init__(self, network: Network, client: Process, servers: Servers, address: str) -> None:
        self._make = lambda method: Call(network, client, servers, address, method)

    def Open(self, request: Any) -> Call:
        return self._make("Open").begin(request)

    def Fetch(self, request: Any) -> Call:
        return self._make("Fetch").begin(request)

    def Acknowledge(self, request: Any, timeout: float | None = None) -> Awaitable[Any]:
        return unary(self._make("Acknowledge").begin(request), timeout)

    def Abort(self, request: Any, timeout: float | None = None) -> Awaitable[Any]:
        return unary(self._make("Abort").begin(request), timeout)
