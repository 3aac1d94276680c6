"""TLS in front of a server that has none: what an operator puts before such a Redis, here for the tests."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

from baton.security.secret_files import Certificates


@contextlib.asynccontextmanager
async def tls_proxy(made: Certificates, part: str, socket_path: str) -> AsyncIterator[int]:
    """The port of a proxy to a unix socket that asks its callers for a certificate of the same CA."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(made.ca))
    context.load_cert_chain(made.cert(part), made.key(part))
    context.verify_mode = ssl.CERT_REQUIRED

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(socket_path)
        await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]
