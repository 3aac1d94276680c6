"""A real Redis server for each test process, flushed between tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
import redis.asyncio

from runtime.state import keys
from runtime.state.store import Store
from tests.patience import PATIENCE_S
from tests.runtime.state.patient import wait_patiently


def redis_binary() -> str:
    """The system's, or the one that came with the packages."""
    return shutil.which("redis-server") or str(Path(sys.executable).with_name("redis-server"))


class RedisServer:
    """A server on a unix socket only, so that parallel runs never meet. It can die and come back."""

    def __init__(self, folder: str, *flags: str, environment: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._flags = flags
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"unix://{folder}/redis.sock"

    def start(self) -> None:
        """With what it saved, if it did."""
        socket = self.url.removeprefix("unix://")
        self._process = subprocess.Popen(
            [redis_binary(), "--port", "0", "--unixsocket", socket, "--save", "", *self._flags],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.DEVNULL,
        )

    def stop(self, *, kill: bool = False) -> None:
        """Wait for its end."""
        assert self._process is not None, "not started"
        if kill:
            self._process.kill()
        else:
            self._process.terminate()
        self._process.wait()

    def pause(self) -> None:
        """Stopped in its tracks; `resume` lets it go on."""
        assert self._process is not None, "not started"
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None, "not started"
        self._process.send_signal(signal.SIGCONT)


@contextmanager
def redis_server(*flags: str) -> Iterator[RedisServer]:
    """One that runs until the block ends; without flags it keeps nothing on disk."""
    with tempfile.TemporaryDirectory(prefix="baton-redis-") as folder:
        server = RedisServer(folder, *flags)
        server.start()
        yield server
        server.stop()


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """One server for all tests of a process."""
    with redis_server() as server:
        yield server.url


def empty(admin: redis.Redis) -> None:
    """Remove all but the epoch: the server stays one whose state is trusted."""
    stale = [key for key in admin.scan_iter() if key != keys.epoch()]
    if stale:
        admin.delete(*stale)
    callers = [field for field in admin.hkeys(keys.epoch()) if "called:" in str(field)]
    if callers:
        admin.hdel(keys.epoch(), *callers)


@pytest.fixture
async def store(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    wait_patiently(monkeypatch)
    opened = await Store.connect(redis_url, PATIENCE_S)
    async with redis.asyncio.Redis.from_url(redis_url) as admin:
        await admin.flushall()
        await opened.list_workers()  # enters the epoch
        yield opened
        await admin.flushall()  # workers that were announced are of another fleet than the next test's
    await opened.close()
