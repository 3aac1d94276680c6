"""Messages of Redis that came while the caller's own event loop stood still count, on any event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import cast

import pytest
import redis.asyncio
import uvloop

from runtime.state import connection
from runtime.state.durable import DurableRedis
from runtime.state.errors import StoreUnavailable
from runtime.state.multiplexer import Multiplexer
from runtime.state.store import Store
from tests.redis_server import redis_server

pytestmark = pytest.mark.integration

ANSWER_S = 0.2
LOOPS = pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])


@LOOPS
def test_answers_that_came_meanwhile_count(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with redis_server() as server, asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(_stand_still(server.url))


async def _stand_still(url: str) -> None:
    await _wait_for(url)
    path = url.removeprefix("unix://")
    make = cast(
        "Callable[[], redis.asyncio.Connection]", partial(redis.asyncio.UnixDomainSocketConnection, path=path)
    )
    calls = Multiplexer(make, 2.0, ANSWER_S)
    for _ in range(3):
        while True:  # a busy machine may be as slow as a server that is too slow
            try:
                await calls.call("PING")
                break
            except redis.RedisError:
                continue
        answer = calls.call("PING")
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # it is sent
        time.sleep(3 * ANSWER_S)  # the standstill
        assert await answer == b"PONG"
    await calls.close()


@LOOPS
def test_a_greeting_that_came_meanwhile_counts(
    make_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    with redis_server() as server, asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(_wait_for(server.url))
        monkeypatch.setattr(connection, "CALL_TIMEOUT_S", ANSWER_S)
        for turns in (2, 5, 8):
            # A busy machine may be as slow as a server that is too slow, but not each time.
            assert any(runner.run(_stand_still_while_it_greets(server.url, turns)) for _ in range(5))


@LOOPS
def test_a_response_over_a_connection_of_ones_own_counts(
    make_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    with redis_server() as server, asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(_wait_for(server.url))
        monkeypatch.setattr(connection, "CALL_TIMEOUT_S", ANSWER_S)
        assert any(runner.run(_stand_still_while_it_responds(server.url)) for _ in range(5))


async def _stand_still_while_it_responds(url: str) -> bool:
    durable = DurableRedis(url)

    async def ask() -> bool:
        try:
            with durable.client() as redis:
                return bool(await redis.ping())
        except StoreUnavailable:
            return False

    while not await ask():
        pass
    call = asyncio.create_task(ask())
    for _ in range(5):
        await asyncio.sleep(0)  # it is sent
    time.sleep(3 * ANSWER_S)
    is_answered = await call
    await durable.close()
    return is_answered


async def _wait_for(url: str) -> None:
    await (await Store.connect(url)).close()


async def _stand_still_while_it_greets(url: str, turns: int) -> bool:
    """Return whether a call gets its answer, although the loop stood still after so many turns."""
    store = Store(connection.Connection(url))
    call = asyncio.create_task(store.queue_status())
    for _ in range(turns):
        await asyncio.sleep(0)
    assert not call.done()
    time.sleep(3 * ANSWER_S)
    try:
        return (await call).waiting == 0
    except StoreUnavailable:
        return False
    finally:
        await store.close()
