"""A subscription whose other end is gone without a word is opened again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from runtime.state import connection
from runtime.state.records import Grant, Nudge
from runtime.state.store import Store
from tests.patience import PATIENCE_S
from tests.runtime.state.common import PREFILL, ROOMY, entry, subscribed


class ForgetfulRoad:
    """A way to Redis on which connections can be forgotten: they stand, and nothing comes through."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self._listen = folder / "road.sock"
        self._target = redis_url.removeprefix("unix://")
        self._known: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = f"unix://{self._listen}"

    async def open(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self._listen)

    async def close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def forget(self) -> None:
        """All connections that there are."""
        self._known.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, there = await asyncio.open_unix_connection(self._target)
        self._known |= {writer, there}
        for source, sink in ((reader, there), (answers, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError):
                while data := await source.read(65536):
                    if sink in self._known:
                        sink.write(data)
                        await sink.drain()
        finally:
            sink.close()


@pytest.fixture
async def road(tmp_path: Path, redis_url: str) -> AsyncIterator[ForgetfulRoad]:
    road = ForgetfulRoad(tmp_path, redis_url)
    await road.open()
    yield road
    await road.close()


async def test_grants_are_heard_again_after_the_other_end_has_vanished(
    store: Store, road: ForgetfulRoad, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SILENCE_S", 0.2)
    far = await Store.connect(road.url)
    notices = await subscribed(far, "far")
    road.forget()
    async with asyncio.timeout(PATIENCE_S):
        assert await anext(notices) == Nudge()
        await store.enqueue(entry("mine", router="far"), 10)
        await store.grant("r1", PREFILL, [ROOMY])
        while not isinstance(heard := await anext(notices), Grant):
            assert heard == Nudge()
    assert heard.request_key == "mine"
    await notices.aclose()
    await far.close()


async def test_a_quiet_subscription_stays(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SILENCE_S", 0.5)
    notices = await subscribed(store, "far")
    for _ in range(10):  # a busy machine may let Redis wait for longer than that, but not each time
        waiting = asyncio.ensure_future(anext(notices))
        await asyncio.wait((waiting,), timeout=5 * connection.SILENCE_S)
        if not waiting.done():
            break
        assert await waiting == Nudge()
    else:
        raise AssertionError("it was opened again each time, though its other end answers")
    await store.enqueue(entry("mine", router="far"), 10)
    await store.grant("r1", PREFILL, [ROOMY])
    heard = await waiting
    assert isinstance(heard, Grant)
    await notices.aclose()
