import asyncio
import inspect
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from baton import AsyncClient, Client, Finished, Timeout, Tokens
from baton.errors import NotFound, Unavailable
from baton.operators.v1 import fleet_pb2
from tests.baton.scripted_service import (
    BREAK,
    HANG,
    WHOLE,
    ScriptedRouter,
    Step,
    accepted,
    ended,
    finished,
    tokens,
)


class RouterThread:
    """A scripted router on a loop of its own, since the blocking client blocks the test's."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.router = ScriptedRouter()

    def start(self, *scripts: tuple[Step, ...]) -> str:
        self.router.scripts = list(scripts)
        asyncio.run_coroutine_threadsafe(self.router.__aenter__(), self._loop).result(10)
        return self.router.address

    def until_heard(self, name: str) -> None:
        asyncio.run_coroutine_threadsafe(self.router.until_heard(name), self._loop).result(10)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self.router.stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def serving() -> Iterator[RouterThread]:
    thread = RouterThread()
    yield thread
    thread.stop()


def test_streams_and_collects(serving: RouterThread) -> None:
    with Client(serving.start(WHOLE)) as client:
        stream = client.generate("hello", request_id="mine")
        events = list(stream)
        assert client.complete("hello").text == "<10><11><12>"
        assert client.generate("hello").collect().text == "<10><11><12>"
    assert isinstance(events[-1], Finished)
    assert (stream.request_id, stream.resumes, stream.retries) == ("mine", 0, 0)


def test_a_broken_stream_is_resumed(serving: RouterThread) -> None:
    rest = (tokens(1, 11), ended(2), finished())
    with Client(serving.start((accepted(), tokens(0, 10), BREAK), rest)) as client:
        stream = client.generate("hello")
        received = [token for event in stream if isinstance(event, Tokens) for token in event.token_ids]
    assert received == [10, 11]
    assert stream.resumes == 1


def test_breaking_out_of_the_loop_ends_the_generation(serving: RouterThread) -> None:
    with Client(serving.start((accepted(), tokens(0, 10), HANG))) as client:
        for event in client.generate("hello"):
            if isinstance(event, Tokens):
                break
        serving.until_heard("Cancel")


def test_errors_come_through(serving: RouterThread) -> None:
    with Client(serving.start(WHOLE)) as client, pytest.raises(NotFound):
        client.drain("decode-9")


def test_watching_can_be_left(serving: RouterThread) -> None:
    serving.router.snapshots = [fleet_pb2.WatchResponse(router_id="one")]
    with Client(serving.start(WHOLE)) as client:
        for snapshot in client.watch():
            assert snapshot.router_id == "one"
            break


def test_several_threads_may_share_a_client(serving: RouterThread) -> None:
    with Client(serving.start(WHOLE)) as client, ThreadPoolExecutor(8) as pool:
        completions = list(pool.map(client.complete, ["hello"] * 32))
    assert {completion.text for completion in completions} == {"<10><11><12>"}


def test_closing_ends_the_background_thread(serving: RouterThread) -> None:
    before = set(threading.enumerate())
    with Client(serving.start(WHOLE)) as client:
        client.complete("hello")
        assert "baton-client" in _names_of_new_threads(before)
    assert "baton-client" not in _names_of_new_threads(before)


def _names_of_new_threads(before: set[threading.Thread]) -> set[str]:
    return {thread.name for thread in set(threading.enumerate()) - before}


def test_out_of_reach_raises_as_in_the_async_client() -> None:
    with Client("127.0.0.1:1", timeout=Timeout(connect_s=0.1)) as client, pytest.raises(Unavailable):
        client.models()


def test_the_blocking_client_has_every_call_of_the_async_one() -> None:
    for name, method in inspect.getmembers(AsyncClient, inspect.isfunction):
        if name.startswith("_") or name == "close":
            continue
        assert inspect.signature(getattr(Client, name)) == inspect.signature(method)
    assert inspect.signature(Client) == inspect.signature(AsyncClient)
