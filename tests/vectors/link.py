"""A connection that a test can break: bytes are passed on until then."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Self


class Link:
    """Listens at an address of its own and passes bytes to and from `target`."""

    def __init__(self, target: str) -> None:
        self._host, _, self._port = target.rpartition(":")
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.address = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def cut(self) -> None:
        """Reset the connections that are open."""
        for writer in self._open:
            writer.transport.abort()

    async def stop(self) -> None:
        """Reset the connections that are open, and listen no more."""
        assert self._server is not None
        self._server.close()
        await self.cut()

    async def listen_again(self) -> None:
        """Listen at the same address, after a stop."""
        host, _, port = self.address.rpartition(":")
        self._server = await asyncio.start_server(self._serve, host, int(port))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with self._held(writer), contextlib.suppress(OSError, asyncio.CancelledError):
            there, back = await asyncio.open_connection(self._host, int(self._port))
            with self._held(back):
                await asyncio.gather(self._pump(reader, back), self._pump_back(there, writer))

    @contextlib.contextmanager
    def _held(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        self._open.add(writer)
        try:
            yield
        finally:
            self._open.discard(writer)
            writer.close()

    async def _pump_back(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Pass on what the target says."""
        await self._pump(source, sink)

    @staticmethod
    async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
        sink.close()
