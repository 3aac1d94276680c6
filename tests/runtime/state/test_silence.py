"""A Redis that is silent is noticed, and a process that stood still itself blames nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest
from redis.exceptions import TimeoutError as RedisTimeoutError

import runtime.state.multiplexer
from runtime.state.connection import Connection
from runtime.state.errors import StoreUnavailable
from runtime.state.standstill import STANDSTILL_S
from runtime.state.store import Store
from tests.runtime.state.fake_server import ANSWER_S, WAIT_S, ManualLoop, Server, multiplexer_of


def play(main: Callable[[ManualLoop], Coroutine[None, None, None]]) -> None:
    loop = ManualLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main(loop))


async def turns(loop: ManualLoop, count: int, turn_s: float = 0.0) -> None:
    """Let the loop turn, each time later by so much."""
    for _ in range(count):
        loop.now += turn_s
        await asyncio.sleep(0)


async def received(server: Server, count: int) -> None:
    """Wait until the server has received so many commands."""
    while sum(len(each.received) for each in server.connections) < count:
        await asyncio.sleep(0)


def test_calls_that_were_given_up_keep_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime.state.multiplexer, "MAX_SENT", 3)

    async def main(loop: ManualLoop) -> None:
        server = Server()
        multiplexer = multiplexer_of(server)
        calls = [multiplexer.call(0, number, "queue_status") for number in range(3)]
        await received(server, 3)
        for call in calls:
            call.cancel()
        waits = multiplexer.call(1, 0, "queue_status")
        await turns(loop, 400, 0.01)
        assert waits.done(), "the server is silent"
        assert isinstance(waits.exception(), RedisTimeoutError)
        await multiplexer.close()

    play(main)


def test_a_loop_that_is_always_late_notices_a_silent_redis() -> None:
    async def main(loop: ManualLoop) -> None:
        server = Server()
        multiplexer = multiplexer_of(server)
        call = multiplexer.call(0, 0, "queue_status")
        await received(server, 1)
        await turns(loop, 100, 3 * STANDSTILL_S)
        assert call.done(), "the server is silent"
        assert isinstance(call.exception(), RedisTimeoutError)
        await multiplexer.close()

    play(main)


def test_a_standstill_while_a_connection_is_opened_is_excused() -> None:
    async def main(loop: ManualLoop) -> None:
        server = Server()
        server.greets.clear()
        multiplexer = multiplexer_of(server)
        call = multiplexer.call(0, 0, "queue_status")
        await turns(loop, 5)
        loop.now += 3 * ANSWER_S
        loop.call_soon(server.greets.set)  # what came meanwhile is read
        await answered(server, call)
        assert call.result() == [0, 0]
        await multiplexer.close()

    play(main)


def test_a_standstill_before_a_call_is_sent_is_excused() -> None:
    async def main(loop: ManualLoop) -> None:
        server = Server()
        multiplexer = multiplexer_of(server)
        first = multiplexer.call(0, 0, "queue_status")
        await answered(server, first)
        call = multiplexer.call(0, 1, "queue_status")
        loop.now += 2 * WAIT_S
        await answered(server, call)
        assert call.result() == [0, 0]
        await multiplexer.close()

    play(main)


def test_a_redis_that_greets_nobody_is_given_up_in_time() -> None:
    async def main(loop: ManualLoop) -> None:
        server = Server()
        server.greets.clear()
        multiplexer = multiplexer_of(server)
        call = multiplexer.call(0, 0, "queue_status")
        await turns(loop, round(ANSWER_S / 0.01) - 1, 0.01)
        assert not call.done()
        await turns(loop, 10, 0.01)
        assert call.exception() is not None
        await multiplexer.close()

    play(main)


class HeldBack:
    """Takes a connection's calls and answers none by itself."""

    def __init__(self) -> None:
        self.calls: list[asyncio.Future[object]] = []

    def call(self, *command: str | int) -> asyncio.Future[object]:
        assert command[0] == "EVAL", "the epoch is not entered yet"
        self.calls.append(asyncio.get_running_loop().create_future())
        return self.calls[-1]

    async def close(self) -> None:
        """Nothing is open."""


async def test_calls_do_not_wait_for_each_other_to_enter_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    connection, held = Connection("unix:///nowhere"), HeldBack()
    monkeypatch.setattr(connection, "_calls", held)
    store = Store(connection)
    calls = [asyncio.create_task(store.queue_status()) for _ in range(10)]
    given_up = asyncio.create_task(store.queue_status())
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.wait((given_up,))
    held.calls[0].set_exception(RedisTimeoutError("no answer"))
    done, _ = await asyncio.wait(calls, timeout=0.1)
    assert len(held.calls) == 1
    assert [type(call.exception()) for call in done] == [StoreUnavailable] * 10
    await store.close()


async def answered(server: Server, call: asyncio.Future[object]) -> None:
    """Let the server answer until a call is done."""
    while not call.done():
        await asyncio.sleep(0)
        server.execute()
        server.answer()
