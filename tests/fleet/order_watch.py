"""Compare every command that a fleet's Redis executes with the order that the fleet promises.

MONITOR reports them in the order in which Redis executes them, including those of scripts. The names of keys
are those of `runtime/state/keys.py`, recognised by their ends.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

CLASS_SCORE = 10**13
"""The distance between the scores of two classes, as in the fleet's state."""
_COMMAND = re.compile(
    rb'\+\d+\.\d+ \[[^]]*\] "(\w+)" "\{baton\}:(queue|grants|leases:[^"]*|credits:[^"]*)"(.*)', re.DOTALL
)
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"')


class Command(NamedTuple):
    """A command on the queue, the grants or a ledger, with the key's name and the words after it."""

    verb: str
    name: str
    words: list[str]


def parsed(line: bytes) -> Command | None:
    """Parse a line of MONITOR; return None for a command on other keys, as most are."""
    found = _COMMAND.match(line)
    if found is None:
        return None
    words = [word.decode() for word in _WORD.findall(found[3])]
    return Command(found[1].decode().upper(), found[2].decode(), words)


@dataclass(slots=True)
class OrderFacts:
    """The observations. `max_leased` and `max_seats` have the most that was leased at any time, by worker."""

    enqueued: int = 0
    granted: int = 0
    leased_at_once: int = 0
    """Requests that held something without ever having had a place."""
    passed: int = 0
    """Grants while an entry of the same class that was due earlier waited."""
    passed_beyond_flight: int = 0
    """Those that passed more entries than grants were in flight, and leases at once that passed any."""
    most_waiting: int = 0
    max_leased: dict[str, int] = field(default_factory=dict)
    max_seats: dict[str, int] = field(default_factory=dict)


class OrderWatch:
    """The queue and the ledgers, reconstructed from the commands."""

    def __init__(self) -> None:
        self.facts = OrderFacts()
        self.ledgers: set[str] = set()
        """Names of all credits and leases ever written, as `leases:WORKER_KEY`."""
        self._scores: dict[str, float] = {}
        self._line: list[tuple[float, str]] = []
        self._had_place: set[str] = set()
        self._passed: dict[str, int] = {}
        self._in_flight: set[str] = set()
        self._seats: dict[str, set[str]] = defaultdict(set)

    def take(self, line: bytes) -> None:
        """Process a line of MONITOR."""
        command = parsed(line)
        if command is None:
            return
        if command.name == "queue":
            self._on_queue(command.verb, command.words)
        elif command.name == "grants":
            self._on_grants(command.verb, command.words)
        else:
            self._on_ledger(command)

    def _on_queue(self, command: str, rest: list[str]) -> None:
        if command == "ZADD":
            score, request = float(rest[-2]), rest[-1]
            self._leave(request)
            self._scores[request] = score
            self._had_place.add(request)
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

    def _on_ledger(self, command: Command) -> None:
        facts, words = self.facts, command.words
        seats = self._seats[command.name]
        kind, worker, _ = command.name.split(":", 2)
        if command.verb == "HSET":
            self.ledgers.add(command.name)
            holder = words[2] if kind == "credits" and len(words) > 2 else ""
            if holder and holder not in self._had_place:
                self._had_place.add(holder)
                facts.leased_at_once += 1
                facts.passed_beyond_flight += bool(self._line)
            if words[0]:
                seats.add(words[0])
            elif kind == "leases":
                total = int(words[1].split(" ")[0])
                facts.max_leased[worker] = max(facts.max_leased.get(worker, 0), total)
                facts.max_seats[worker] = max(facts.max_seats.get(worker, 0), len(seats))
        elif command.verb == "HDEL":
            seats.difference_update(words)
        elif command.verb in ("DEL", "UNLINK"):
            seats.clear()
