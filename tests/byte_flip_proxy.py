"""A TCP proxy that damages what a gRPC server answers: a byte in the middle of a large message.

HTTP/2 and gRPC carry no checksum, so the message still parses; only its payload is wrong. Messages under
`MIN_MESSAGE_BYTES` (reports, offers) are left alone: what is hit is a piece of a block.
"""

import asyncio
import contextlib
from dataclasses import dataclass, field

from tests.vectors.link import Link

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


class ByteFlipProxy(Link):
    """`async with ByteFlipProxy("host:port", flips=1) as proxy:` and dial `proxy.address` instead."""

    def __init__(self, target: str, *, flips: int) -> None:
        super().__init__(target)
        self.num_flipped = 0
        self._flips = flips

    async def _pump_back(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        streams: dict[int, _Stream] = {}
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                header = await source.readexactly(FRAME_HEADER_BYTES)
                payload = bytearray(await source.readexactly(int.from_bytes(header[:3])))
                if header[3] == DATA_FRAME and not header[4] & PADDED:
                    self._pass(streams.setdefault(int.from_bytes(header[5:]), _Stream()), payload)
                await self._forward(header + payload, sink)
        sink.close()

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
