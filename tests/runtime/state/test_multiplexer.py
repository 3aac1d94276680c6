"""Calls over one connection get the answers that they would get one at a time, whatever happens to it.

The server of the property tests is the store in memory. Each test says when it executes commands, when it
answers, when it loses or refuses a connection, and how time passes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import pytest
import redis.asyncio
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

import runtime.state.multiplexer
from runtime.state import connection
from runtime.state.errors import StoreUnavailable
from runtime.state.multiplexer import MAX_SENT, pack
from runtime.state.records import QueueStatus
from runtime.state.store import Store
from sim.store.memory_store import MemoryStore
from tests.patience import PATIENCE_S
from tests.redis_server import redis_server
from tests.runtime.state.fake_server import (
    ANSWER_S,
    WAIT_S,
    ManualLoop,
    Name,
    Server,
    multiplexer_of,
    perform,
)

KEYS = st.sampled_from(["a", "b", "c"])
OPERATIONS = st.one_of(
    st.tuples(st.just("enqueue"), KEYS),
    st.tuples(st.just("dequeue"), KEYS),
    st.just(("grant",)),
    st.just(("queue_status",)),
)
CALLERS = st.lists(st.lists(OPERATIONS, min_size=1, max_size=4), min_size=1, max_size=5)
CALM = ("start", "turn", "execute", "answer")
FAULTS = ("lose", "refuse", "pass half", "give up")
CALM_STEPS = st.lists(st.sampled_from(CALM), max_size=40)
STEPS = st.lists(st.sampled_from(CALM * 3 + FAULTS), max_size=60)


class World:
    """Callers that each make one call after the other, and what came of these."""

    def __init__(self, callers: Sequence[Sequence[tuple[str, ...]]]) -> None:
        self.server = Server()
        self.multiplexer = multiplexer_of(self.server)
        self.outcomes: dict[Name, object] = {}
        self.given_up: set[Name] = set()
        self._waiting = deque(enumerate(callers))
        self._under_way: dict[Name, asyncio.Future[Any]] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def play(self, steps: Sequence[str], loop: ManualLoop) -> None:
        """Take the steps, and then let everything come to its end."""
        for step in steps:
            await self._take(step, loop)
        while not all(task.done() for task in self.tasks) or self._waiting:
            for step in ("start", "turn", "execute", "answer", "turn"):
                await self._take(step, loop)
        await self.multiplexer.close()

    async def _take(self, step: str, loop: ManualLoop) -> None:
        match step:
            case "start" if self._waiting:
                self.tasks.append(asyncio.create_task(self._call(*self._waiting.popleft())))
            case "execute":
                self.server.execute()
            case "answer":
                self.server.answer()
            case "lose":
                self.server.lose()
            case "refuse":
                self.server.refuses = True
            case "pass half":
                loop.now += ANSWER_S / 2
            case "give up" if self._under_way:
                name, call = next(iter(self._under_way.items()))
                self.given_up.add(name)
                call.cancel()
        for _ in range(4):
            await asyncio.sleep(0)

    async def _call(self, caller: int, operations: Sequence[tuple[str, ...]]) -> None:
        for number, operation in enumerate(operations):
            name = (caller, number)
            call = self._under_way[name] = self.multiplexer.call(*name, *operation)
            try:
                self.outcomes[name] = await call
            except RedisError as error:
                self.outcomes[name] = error
            except asyncio.CancelledError:
                self.outcomes[name] = "given up"
            del self._under_way[name]


def play(callers: Sequence[Sequence[tuple[str, ...]]], steps: Sequence[str]) -> World:
    loop = ManualLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:

        async def main() -> World:
            world = World(callers)
            await world.play(steps, loop)
            return world

        return runner.run(main())


def test_a_command_is_packed_as_by_redis_py() -> None:
    peer = redis.asyncio.Connection()

    @given(st.lists(st.text(max_size=20) | st.integers(), max_size=5))
    def same(arguments: list[str | int]) -> None:
        command = ("EVALSHA", *arguments)
        assert pack(command) == b"".join(peer.pack_command(*command))

    same()


@given(CALLERS, CALM_STEPS)
def test_calls_together_are_answered_as_one_at_a_time(
    callers: list[list[tuple[str, ...]]], steps: list[str]
) -> None:
    world = play(callers, steps)
    executed = [name for name, _ in world.server.executed]
    assert Counter(executed) == Counter(
        (caller, number) for caller, calls in enumerate(callers) for number in range(len(calls))
    )
    alone = MemoryStore(lambda: 0.0)
    for caller, number in executed:
        expected = perform(alone, callers[caller][number])
        found = world.outcomes[caller, number]
        assert (type(found), str(found)) == (type(expected), str(expected))


@given(CALLERS, STEPS)
def test_a_call_gets_its_own_answer_or_an_error_whatever_happens(
    callers: list[list[tuple[str, ...]]], steps: list[str]
) -> None:
    world = play(callers, steps)
    answers: dict[Name, list[object]] = {}
    for name, answer in world.server.executed:
        answers.setdefault(name, []).append(answer)
    for caller, calls in enumerate(callers):
        order = [number for (who, number), _ in world.server.executed if who == caller]
        assert order == sorted(order), "the calls of one caller keep their order"
        for number in range(len(calls)):
            _judge(world, (caller, number), answers.get((caller, number), []))


def _judge(world: World, name: Name, answers: list[object]) -> None:
    outcome = world.outcomes[name]
    assert len(answers) <= 2
    if name in world.given_up:
        assert outcome == "given up"
    elif isinstance(outcome, RedisError) and not isinstance(outcome, ResponseError):
        assert str(outcome) in ("lost", "refused", f"no answer within {ANSWER_S:g} s")
    else:
        assert outcome is answers[-1], "the answer to the last time that it was executed"


async def test_calls_of_one_turn_are_one_write() -> None:
    server = Server()
    multiplexer = multiplexer_of(server)
    for num_writes in (1, 2):
        calls = [multiplexer.call(0, number, "queue_status") for number in range(9)]
        while not server.connections or not server.connections[0].received:
            await asyncio.sleep(0)
        assert server.num_writes == num_writes
        for _ in calls:
            server.execute()
            server.answer()
        assert await asyncio.gather(*calls) == [[0, 0]] * 9
    await multiplexer.close()


async def test_more_calls_than_may_be_sent_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime.state.multiplexer, "MAX_SENT", 3)
    server = Server()
    multiplexer = multiplexer_of(server)
    calls = [multiplexer.call(0, number, "queue_status") for number in range(10)]
    while not all(call.done() for call in calls):
        await asyncio.sleep(0)
        assert sum(len(each.received) + len(each.kept) for each in server.connections) <= 3
        server.execute()
        server.answer()
    assert [name for name, _ in server.executed] == [(0, number) for number in range(10)]
    await multiplexer.close()


def test_a_call_whose_turn_does_not_come_fails() -> None:
    loop = ManualLoop()

    async def main() -> None:
        server = Server()
        multiplexer = multiplexer_of(server, answer_s=10 * WAIT_S)
        sent = [multiplexer.call(0, number, "queue_status") for number in range(MAX_SENT)]
        waits = multiplexer.call(0, MAX_SENT, "queue_status")
        while not server.connections or not server.connections[0].received:
            await asyncio.sleep(0)
        loop.now += 1.5 * WAIT_S
        server.execute()
        server.answer()
        with pytest.raises(RedisConnectionError, match="too many calls are under way"):
            await waits
        assert await sent[0] == [0, 0]
        assert not sent[1].done()
        await multiplexer.close()
        assert isinstance(sent[1].exception(), RedisConnectionError)
        for call in sent:
            call.exception()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())


@pytest.mark.parametrize("turns", range(8))
async def test_calls_fail_when_their_connection_is_closed(turns: int) -> None:
    multiplexer = multiplexer_of(Server())
    call = multiplexer.call(0, 0, "queue_status")
    for _ in range(turns):
        await asyncio.sleep(0)
    await multiplexer.close()
    assert isinstance(call.exception(), RedisConnectionError)


async def test_calls_outlive_their_connection(store: Store, redis_url: str) -> None:
    async with redis.asyncio.Redis.from_url(redis_url) as admin:
        for _ in range(10):
            calls = [asyncio.create_task(store.queue_status()) for _ in range(50)]
            await asyncio.sleep(0)
            await admin.client_kill_filter(_type="normal", skipme=True)
            assert {status.waiting for status in await asyncio.gather(*calls)} == {0}


async def test_a_script_that_redis_lost_is_sent_again(store: Store, redis_url: str) -> None:
    await store.queue_status()
    async with redis.asyncio.Redis.from_url(redis_url) as admin:
        await admin.script_flush()
    statuses = await asyncio.gather(*(store.queue_status() for _ in range(5)))
    assert [status.waiting for status in statuses] == [0] * 5


async def test_a_redis_that_stands_still_fails_each_call_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with redis_server() as server:
        await (await Store.connect(server.url)).close()
        monkeypatch.setattr(connection, "CALL_TIMEOUT_S", 0.2)
        store = await Store.connect(server.url)
        assert (await answered(store)).waiting == 0
        server.pause()
        for _ in range(2):
            calls = [asyncio.create_task(store.queue_status()) for _ in range(20)]
            for call in calls:
                with pytest.raises(StoreUnavailable, match="TimeoutError"):
                    await call
        server.resume()
        assert (await answered(store)).waiting == 0
        await store.close()


async def answered(store: Store) -> QueueStatus:
    """Ask until Redis answers in time, as it may not on a busy machine."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(StoreUnavailable):
                return await store.queue_status()
