"""Proxies between two parts of a fleet under fire: bytes to Redis, gRPC messages to all others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import grpc
import grpc.aio

from tests.chaos.callers import Naming, nobody
from tests.chaos.datagrams import DatagramProxy
from tests.chaos.links import Link, Way
from tests.chaos.plan import Kind
from tests.chaos.sightings import Call, Sighting
from tests.chaos.watch import Watch

_Read = Callable[[bytes], Sequence[Sighting]]

OPTIONS = (
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.so_reuseport", 0),
    # Who was killed is back within a second.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
)


class TcpProxy(Link):
    """Bytes to a unix socket, for Redis."""

    def __init__(self, socket: str, host: str = "127.0.0.1", naming: Naming = nobody) -> None:
        super().__init__()
        self._socket, self._host, self._naming = socket, host, naming
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self._host, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there: asyncio.StreamWriter | None = None
        host, port = writer.get_extra_info("peername")
        caller = self._naming(host, port, "tcp")
        with self.pumping(caller), contextlib.suppress(OSError, asyncio.CancelledError):
            try:
                answers, there = await asyncio.open_unix_connection(self._socket)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._pump(reader, there, caller, Way.THERE))
                    tasks.create_task(self._pump(answers, writer, caller, Way.BACK))
            except* (OSError, RuntimeError):
                pass  # uvloop says the latter of a transport that has been closed
            finally:
                for entry in (writer, there):
                    if entry is not None:
                        entry.close()

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, caller: str, way: Way
    ) -> None:
        while data := await source.read(65536):
            await self.passage(caller, way)
            sink.write(data)
            await sink.drain()
        raise ConnectionResetError


@dataclass(frozen=True, slots=True)
class _End:
    """How a call ended on the far side."""

    code: grpc.StatusCode
    details: str
    trailing: Any = ()


class MessageProxy(Link):
    """Forwards every gRPC method as it is, message by message; `address` is dialled instead of the target.
    Datagrams to the same address are forwarded as well.

    Each message is shown to the watch, which says what is to become of it.
    """

    def __init__(self, name: str, listen: str, target: str, watch: Watch, naming: Naming = nobody) -> None:
        super().__init__()
        self.address, self._target = listen, target
        self._name, self._watch, self._naming = name, watch, naming

    async def __aenter__(self) -> Self:
        self._channel = grpc.aio.insecure_channel(self._target, options=OPTIONS)
        self._server = grpc.aio.server(options=OPTIONS)
        self._server.add_generic_rpc_handlers((_Everything(self._forward),))
        assert self._server.add_insecure_port(self.address), f"{self.address} is taken"
        await self._server.start()
        datagrams = DatagramProxy(self.address, self._target, self.forward, self._naming)
        self._datagrams = await datagrams.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        await self._datagrams.__aexit__()
        await self._server.stop(grace=None)
        await self._channel.close()

    async def _forward(self, method: str, requests: AsyncIterator[bytes], context: Any) -> None:
        # Said where no further cut can strike: a call that hears of no end would hang for ever.
        end = await self._pumped(method, requests, context)
        context.set_trailing_metadata(_passed_on(end.trailing))
        if end.code is not grpc.StatusCode.OK:
            await context.abort(end.code, end.details)

    async def _pumped(self, method: str, requests: AsyncIterator[bytes], context: Any) -> _End:
        caller = self._caller(context.peer())
        with self.pumping(caller):
            call: Any = self._channel.stream_stream(method)(
                metadata=_passed_on(context.invocation_metadata())
            )
            what = Call(self._name, method, self._watch.lives)
            sending = asyncio.create_task(self._send(what.sent, requests, call, caller))
            writing: asyncio.Future[None] | None = None
            try:
                async for message in self._tampered(what.answered, call, caller, Way.BACK):
                    writing = asyncio.ensure_future(context.write(message))
                    await asyncio.shield(writing)
                return _End(await call.code(), await call.details() or "", await call.trailing_metadata())
            except grpc.aio.AioRpcError as error:
                return _End(error.code(), error.details() or "", error.trailing_metadata())
            except asyncio.CancelledError:
                # Broken off in the first one, the library sends the headers twice, and then no end at all.
                if writing is not None:
                    await asyncio.gather(writing, return_exceptions=True)
                return _End(grpc.StatusCode.UNAVAILABLE, "the link was cut")
            finally:
                sending.cancel()
                call.cancel()

    def _caller(self, peer: str) -> str:
        """Return the process at a peer such as "ipv4:127.0.0.1:4711"."""
        _, host, port = peer.split(":")
        return self._naming(host, int(port), "tcp")

    async def _send(self, read: _Read, requests: AsyncIterator[bytes], call: Any, caller: str) -> None:
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            async for message in self._tampered(read, requests, caller, Way.THERE):
                await call.write(message)
            await call.done_writing()

    async def _tampered(
        self, read: _Read, messages: AsyncIterator[bytes], caller: str, way: Way
    ) -> AsyncIterator[bytes]:
        held: tuple[bytes, Sequence[Sighting]] | None = None
        async for message in messages:
            await self.passage(caller, way)
            seen = read(message)
            kind = self._watch.coming(seen, len(message))
            await self.passage(caller, way)  # which may be closed now
            await self._watch.passage(seen)
            if kind is Kind.REORDER and held is None:
                held = message, seen
                continue
            for entry in _made_of(kind, message):
                yield entry
                self._watch.passed(seen)
            if held is not None:
                yield held[0]
                self._watch.passed(held[1])
                held = None
        if held is not None:
            yield held[0]


def _made_of(kind: Kind | None, message: bytes) -> tuple[bytes, ...]:
    """Return what arrives in place of a message."""
    match kind:
        case Kind.DROP:
            return ()
        case Kind.DUPLICATE:
            return message, message
        case Kind.CORRUPT:
            middle = len(message) // 2
            return (message[:middle] + bytes([message[middle] ^ 0x10]) + message[middle + 1 :],)
    return (message,)


class _Everything(grpc.GenericRpcHandler):
    """Any method of any service, as streams of bytes."""

    def __init__(self, forward: Callable[[str, AsyncIterator[bytes], Any], Any]) -> None:
        self._forward = forward

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = handler_call_details.method

        async def call(requests: AsyncIterator[bytes], context: Any) -> None:
            await self._forward(method, requests, context)

        return grpc.stream_stream_rpc_method_handler(call)


def _passed_on(metadata: Any) -> tuple[tuple[str, str | bytes], ...]:
    """Metadata of the application; what the transport adds belongs to each connection."""
    own = ("user-agent", "te", "content-type", "grpc-")
    kept = [(key, value) for key, value in metadata or () if not key.startswith(own) or key == STATUS_DETAILS]
    return tuple(kept)


STATUS_DETAILS = "grpc-status-details-bin"
