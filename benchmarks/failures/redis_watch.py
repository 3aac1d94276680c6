"""Compare every command that a fleet's Redis executes with the order that the fleet promises.

MONITOR reports them in the order in which Redis executes them, including those of scripts. The names of keys
are those of `state/keys.py`, recognised by their ends.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left, insort
from collections import defaultdict
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

CLASS_SCORE = 10**13
"""The distance between the scores of two classes, as in the fleet's state."""
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_LINE_BYTES = 1 << 22
_WATCHED = tuple(b'"{baton}:' + name for name in (b'queue"', b'grants"', b"leases:", b"credits:"))
"""Searched for before a line is parsed: most lines are about other keys."""


@dataclass(slots=True)
class OrderFacts:
    """The observations. `max_leased` and `max_seats` have the most that was leased at any time, by worker."""

    enqueued: int = 0
    granted: int = 0
    passed: int = 0
    """Grants while an entry of the same class that was due earlier waited."""
    passed_beyond_flight: int = 0
    """The part of them that passed more entries than grants were in flight."""
    most_waiting: int = 0
    max_leased: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    max_seats: dict[str, int] = field(default_factory=lambda: defaultdict(int))


class OrderWatch:
    """The queue and the ledgers, reconstructed from the commands."""

    def __init__(self) -> None:
        self.facts = OrderFacts()
        self.ledgers: set[str] = set()
        """Keys of all credits and leases ever written."""
        self._scores: dict[str, float] = {}
        self._line: list[tuple[float, str]] = []
        self._passed: dict[str, int] = {}
        self._in_flight: set[str] = set()
        self._seats: dict[str, set[str]] = defaultdict(set)

    def take(self, line: bytes) -> None:
        """Process a line of MONITOR."""
        if not any(name in line for name in _WATCHED):
            return
        words = [word.decode() for word in _WORD.findall(line)]
        if len(words) < 2:
            return
        command, key, *rest = words
        name = key.removeprefix("{baton}:")
        if name == "queue":
            self._on_queue(command.upper(), rest)
        elif name == "grants":
            self._on_grants(command.upper(), rest)
        elif name.startswith(("leases:", "credits:")):
            self._on_ledger(command.upper(), key, rest)

    def _on_queue(self, command: str, rest: list[str]) -> None:
        if command == "ZADD":
            score, request = float(rest[-2]), rest[-1]
            self._leave(request)
            self._scores[request] = score
            insort(self._line, (score, request))
            self.facts.enqueued += 1
            self.facts.most_waiting = max(self.facts.most_waiting, len(self._line))
        elif command == "ZREM":
            for request in rest:
                self._leave(request)

    def _leave(self, request: str) -> None:
        score = self._scores.pop(request, None)
        if score is None:
            return
        place = bisect_left(self._line, (score, request))
        del self._line[place]
        first_of_class = bisect_left(self._line, (score // CLASS_SCORE * CLASS_SCORE, ""))
        earlier = bisect_left(self._line, (score, ""))
        self._passed[request] = earlier - first_of_class

    def _on_grants(self, command: str, rest: list[str]) -> None:
        if command == "ZADD":
            facts, passed = self.facts, self._passed.pop(rest[-1], 0)
            facts.granted += 1
            facts.passed += passed > 0
            facts.passed_beyond_flight += passed > len(self._in_flight)
            self._in_flight.add(rest[-1])
        elif command == "ZREM":
            self._in_flight.difference_update(rest)

    def _on_ledger(self, command: str, key: str, rest: list[str]) -> None:
        seats, worker = self._seats[key], key.split(":")[2]
        if command == "HSET":
            self.ledgers.add(key)
            if rest[0]:
                seats.add(rest[0])
            elif ":leases:" in key:
                total = int(rest[1].split(" ")[0])
                self.facts.max_leased[worker] = max(self.facts.max_leased[worker], total)
                self.facts.max_seats[worker] = max(self.facts.max_seats[worker], len(seats))
        elif command == "HDEL":
            seats.difference_update(rest)
        elif command in ("DEL", "UNLINK"):
            seats.clear()


class Takes(Protocol):
    """A consumer of MONITOR's lines."""

    def take(self, line: bytes) -> None: ...


class Monitor:
    """Feeds every line of a Redis's MONITOR to a watch while the `async with` block lasts."""

    def __init__(self, address: str, watch: Takes) -> None:
        self._watch = watch
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        reader, self._writer = await asyncio.open_connection(self._host, self._port, limit=_LINE_BYTES)
        self._writer.write(b"MONITOR\r\n")
        answer = await reader.readline()
        if answer != b"+OK\r\n":
            raise ValueError(f"MONITOR was answered with {answer!r}; accepted: a server that allows it")
        self._task = asyncio.create_task(self._listen(reader))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._writer.close()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            self._watch.take(line)


class RedisWatch(Monitor):
    """A monitor with an `OrderWatch`."""

    def __init__(self, address: str) -> None:
        self.order = OrderWatch()
        super().__init__(address, self.order)
