"""A TCP proxy that damages what a gRPC server answers: a byte in the middle of a large message.

HTTP/2 and gRPC carry no checksum, so the message still parses; only its payload is wrong. Messages under
`MIN_MESSAGE_BYTES` (reports, offers) are left alone: what is hit is a piece of a block.
"""

import asyncio
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

FRAME_HEADER_BYTES = 9
DATA_FRAME = 0
PADDED = 0x8
MESSAGE_PREFIX_BYTES = 5
MIN_MESSAGE_BYTES = 8192


@dataclass
class _Stream:
    """How far into the messages of one HTTP/2 stream its frames have come."""

    prefix: bytearray = field(default_factory=bytearray)
    position: int = 0
    length: int = 0


class ByteFlipProxy:
    """`async with ByteFlipProxy("host:port", flips=1) as proxy:` and dial `proxy.address` instead."""

    def __init__(self, target: str, *, flips: int) -> None:
        self.num_flipped = 0
        self.address = ""
        self._target = target
        self._flips = flips
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pumps.add(task)
        host, _, port = self._target.rpartition(":")
        try:
            server_reader, server_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            self._pumps.discard(task)
            return
        pumps = {
            asyncio.create_task(_copy(reader, server_writer)),
            asyncio.create_task(self._damage(server_reader, writer)),
        }
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            writer.close()
            server_writer.close()
            self._pumps.discard(task)

    async def _damage(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        streams: dict[int, _Stream] = {}
        try:
            while True:
                header = await reader.readexactly(FRAME_HEADER_BYTES)
                payload = bytearray(await reader.readexactly(int.from_bytes(header[:3])))
                if header[3] == DATA_FRAME and not header[4] & PADDED:
                    self._pass(streams.setdefault(int.from_bytes(header[5:]), _Stream()), payload)
                await self._forward(header + payload, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    async def _forward(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    def _pass(self, stream: _Stream, payload: bytearray) -> None:
        """Follows the message boundaries through one frame, and flips a byte at a large message's middle."""
        offset = 0
        while offset < len(payload):
            if stream.position == stream.length:
                missing = MESSAGE_PREFIX_BYTES - len(stream.prefix)
                stream.prefix += payload[offset : offset + missing]
                offset += missing
                if len(stream.prefix) == MESSAGE_PREFIX_BYTES:
                    stream.position, stream.length = 0, int.from_bytes(stream.prefix[1:])
                    stream.prefix.clear()
                continue
            here = min(len(payload) - offset, stream.length - stream.position)
            middle = stream.length // 2 - stream.position
            if 0 <= middle < here and stream.length >= MIN_MESSAGE_BYTES:
                self._flip(payload, offset + middle)
            stream.position += here
            offset += here

    def _flip(self, payload: bytearray, at: int) -> None:
        if self.num_flipped < self._flips:
            payload[at] ^= 0x20
            self.num_flipped += 1


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        return
