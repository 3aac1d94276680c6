"""A Redis in memory, behind connections that a test loses, refuses and lets answer as it likes.

Its commands are the operations of the store in memory, each behind the name of its call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from runtime.state.errors import QueueFull
from runtime.state.multiplexer import Multiplexer
from sim.store.memory_store import MemoryStore
from tests.runtime.state.common import PREFILL, ROOMY, entry

WAIT_S, ANSWER_S = 2.0, 1.0
CAPACITY = 2

Name = tuple[int, int]
"""The number of a caller, and that of its call."""


class ManualLoop(asyncio.SelectorEventLoop):
    """A loop whose clock the test sets."""

    now = 0.0

    def time(self) -> float:
        return self.now


class Server:
    """Executes what its connection sends, when it is told to."""

    def __init__(self) -> None:
        self.store = MemoryStore(lambda: 0.0)
        self.executed: list[tuple[Name, object]] = []
        """Every command with its answer, in order."""
        self.connections: list[FakeConnection] = []
        """Those that are open."""
        self.refuses = False
        """Refuse the next connection."""
        self.greets = asyncio.Event()
        """Connections are open once this is set."""
        self.greets.set()
        self.num_writes = 0

    def execute(self) -> None:
        """Execute the next command, and keep its answer back."""
        for each in self.connections:
            if each.received:
                caller, number, *operation = each.received.popleft()
                answer = perform(self.store, operation)
                self.executed.append(((int(caller), int(number)), answer))
                each.kept.append(answer)
                return

    def answer(self) -> None:
        """Answer the next executed command."""
        for each in self.connections:
            if each.kept:
                each.answers.put_nowait(each.kept.popleft())
                return

    def lose(self) -> None:
        """Lose all connections, with what is on its way."""
        for each in self.connections:
            each.answers.put_nowait(RedisConnectionError("lost"))
        self.connections.clear()


class FakeConnection:
    """The part of a redis-py connection that the multiplexer uses."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.received: deque[list[str]] = deque()
        self.kept: deque[object] = deque()
        self.answers: asyncio.Queue[object] = asyncio.Queue()

    async def connect(self) -> None:
        await asyncio.sleep(0)
        await self._server.greets.wait()
        if self._server.refuses:
            self._server.refuses = False
            raise RedisConnectionError("refused")
        self._server.connections.append(self)

    async def send_packed_command(self, packed: bytes, *, check_health: bool) -> None:
        assert not check_health
        self._server.num_writes += 1
        self.received += unpack(packed)

    async def read_response(self, *, timeout: float, disconnect_on_error: bool) -> object:
        assert timeout > 1e9
        assert not disconnect_on_error
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def disconnect(self, *, nowait: bool) -> None:
        assert nowait
        if self in self._server.connections:
            self._server.connections.remove(self)


def unpack(packed: bytes) -> list[list[str]]:
    """Return the arguments of commands; none has a line break in it."""
    lines = iter(packed.decode().split("\r\n"))
    commands = []
    while header := next(lines):
        assert header[0] == "*"
        parts = [(next(lines), next(lines)) for _ in range(int(header[1:]))]
        assert all(length == f"${len(part)}" for length, part in parts)
        commands.append([part for _, part in parts])
    return commands


def multiplexer_of(server: Server, answer_s: float = ANSWER_S) -> Multiplexer:
    return Multiplexer(lambda: cast("Any", FakeConnection(server)), WAIT_S, answer_s)


def perform(store: MemoryStore, operation: Sequence[str]) -> object:
    """Return an operation's answer as Redis gives it: an error or something of JSON."""
    match operation:
        case ["enqueue", key]:
            try:
                place = store.enqueue(entry(key), CAPACITY)
            except QueueFull as full:
                return ResponseError(str(full))
            return [place.position, place.work_ahead_tokens]
        case ["dequeue", key]:
            return int(store.dequeue(key))
        case ["grant"]:
            return [grant.request_key for grant in store.grant("r1", PREFILL, [ROOMY])]
        case _:
            return [store.queue_status().waiting, store.queue_status().waiting_tokens]
