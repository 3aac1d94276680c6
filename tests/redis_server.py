"""A real Redis server for each test process, flushed between tests."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis.asyncio

from state.store import Store


@contextmanager
def redis_server() -> Iterator[str]:
    """The URL of a server that listens on a unix socket only, so that parallel runs never meet."""
    binary = shutil.which("redis-server") or str(Path(sys.executable).with_name("redis-server"))
    with tempfile.TemporaryDirectory(prefix="baton-redis-") as folder:
        socket = f"{folder}/redis.sock"
        server = subprocess.Popen(
            [binary, "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no"],
            cwd=folder,
            stdout=subprocess.DEVNULL,
        )
        yield f"unix://{socket}"
        server.terminate()
        server.wait()


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """One server for all tests of a process."""
    with redis_server() as url:
        yield url


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[Store]:
    opened = await Store.connect(redis_url)
    async with redis.asyncio.Redis.from_url(redis_url) as admin:
        await admin.flushall()
    yield opened
    await opened.close()
