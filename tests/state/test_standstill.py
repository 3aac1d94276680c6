"""Answers of Redis that came while the caller's own event loop stood still count, on any event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import cast

import pytest
import redis.asyncio
import uvloop

from state.multiplexer import Multiplexer
from state.store import Store
from tests.redis_server import redis_server

pytestmark = pytest.mark.integration

ANSWER_S = 0.2


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_answers_that_came_meanwhile_count(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with redis_server() as server, asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(_stand_still(server.url))


async def _stand_still(url: str) -> None:
    await (await Store.connect(url)).close()  # it waits until the server responds
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
