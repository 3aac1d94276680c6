"""An HTTP client as light as can be, so that what is measured is the server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

_BUSY = (b"HTTP/1.1 429", b"HTTP/1.1 503", b"HTTP/1.1 529")


class BadStream(Exception):
    """A response that is not the whole stream of tokens that was asked for."""


class Rejected(BadStream):
    """A request that the server did not take, with status 429, 503 or 529."""


class PlainCaller:
    """One connection, for one stream after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    @asynccontextmanager
    async def connected(cls, address: str) -> AsyncIterator[PlainCaller]:
        """Connect to `host:port` while the block lasts."""
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            yield cls(reader, writer)
        finally:
            writer.close()

    async def play(self, body: Mapping[str, Any]) -> float:
        """Stream a completion of `max_tokens` to its end; return the seconds to its first token.

        Raises `Rejected` if the server is busy or cannot keep the request's SLO, and `BadStream` for another
        error, within the stream too, and for another number of tokens.
        """
        request = {**body, "stream": True, "stream_options": {"include_usage": True}}
        content = json.dumps(request).encode()
        start_s, ttft_s = time.perf_counter(), 0.0
        head = (
            "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"content-length: {len(content)}\r\n\r\n"
        )
        self._writer.write(head.encode() + content)
        received = b""
        while not received.endswith(b"\r\n0\r\n\r\n"):
            piece = await self._reader.read(1 << 16)
            if not received and piece.startswith(_BUSY):
                raise Rejected(f"the response is {piece[-300:]!r}")
            if not piece or (not received and not piece.startswith(b"HTTP/1.1 200")):
                raise BadStream(f"the response ended with {(received + piece)[-300:]!r}")
            if not ttft_s and b"data: {" in piece:
                ttft_s = time.perf_counter() - start_s
            received = received[-4096:] + piece
        if b'"completion_tokens":%d' % body["max_tokens"] not in received.replace(b" ", b""):
            raise BadStream(f"the stream ended with {received[-300:]!r}")
        return ttft_s
