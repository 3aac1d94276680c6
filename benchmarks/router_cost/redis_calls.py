"""The commands that a fleet's Redis executes, as its MONITOR reports them, with those of scripts."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator

from baton.fleet.checkout import find_redis_server

_LINE_BYTES = 1 << 22


@contextlib.contextmanager
def own_redis() -> Iterator[str]:
    """Run a Redis for a fleet and yield its URL. A fleet's private server does not allow MONITOR."""
    with tempfile.TemporaryDirectory(prefix="baton-redis-") as folder:
        socket = f"{folder}/redis.sock"
        listening = "--port", "0", "--unixsocket", socket, "--unixsocketperm", "600"
        server = subprocess.Popen(
            [find_redis_server(), *listening, "--save", "", "--maxmemory-policy", "noeviction"],
            cwd=folder,
            stdout=subprocess.DEVNULL,
        )
        try:
            yield f"unix://{socket}"
        finally:
            server.terminate()
            server.wait()


@contextlib.asynccontextmanager
async def monitored(url: str, take: Callable[[bytes], None]) -> AsyncIterator[None]:
    """Feed every line of MONITOR of the Redis at `unix://PATH` to `take` while the block lasts."""
    path = url.removeprefix("unix://")
    reader, writer = await asyncio.open_unix_connection(path, limit=_LINE_BYTES)
    writer.write(b"MONITOR\r\n")
    answer = await reader.readline()
    if answer != b"+OK\r\n":
        raise ValueError(f"MONITOR was answered with {answer!r}; accepted: a server that allows it")

    async def listen() -> None:
        while line := await reader.readline():
            take(line)

    listening = asyncio.create_task(listen())
    try:
        yield
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        writer.close()
