"""Links between processes, and what travels on them.

Every pair of hosts has a link in each direction. A link is up, cut (whoever sends learns soon that nothing
arrives), half open (nobody learns anything: messages wait, and arrive if the link comes back before somebody
gives up), or slow. A `Connection` keeps the order of its messages, as a TCP stream does; a datagram may also
be lost, doubled or overtaken.

Links belong to names: a process that is started again has the links of the one before.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.dst.world.dice import Dice
from tests.dst.world.process import Process
from tests.dst.world.scheduler import Scheduler

Pair = tuple[str, str]
NOTICED_S = (0.001, 0.02)
"""When a broken connection is noticed: a reset arrives."""
KEEPALIVE_S = (10.0, 15.0)
"""When both ends give up a connection that has been half open."""


class LinkState(enum.Enum):
    UP = "up"
    CUT = "cut"
    HALF_OPEN = "half-open"


@dataclass(slots=True)
class Trip:
    """The way of one message, which is noted only if somebody wants to see it."""

    source: str
    target: str
    what: str
    sent_at: float
    due_at: float | None = None
    """When it reaches the other host; None while its link is half open, and if it was lost on the way."""
    taken_at: float | None = None
    """When the other process took it; None if it never did."""
    is_unwanted: bool = False
    """It came after the other process had ended the connection in order."""
    requests: tuple[str, ...] = ()
    """The requests that it is about."""


class Network:
    """All links of a fleet; `delay_s` bounds what a message takes."""

    def __init__(self, scheduler: Scheduler, dice: Dice, delay_s: tuple[float, float]) -> None:
        self.scheduler = scheduler
        self.dice = dice
        self._delay_s = delay_s
        self._states: dict[Pair, LinkState] = {}
        self._extra_s: dict[Pair, float] = {}
        self._numbers: dict[object, int] = {}
        self._open: list[Connection] = []
        self.trace: Callable[[Trip, object, Any], None] | None = None
        """Called with each message that is sent: its trip, the name of its connection, and itself."""
        self.trace_broken: Callable[[str, object, str], None] | None = None
        """Called with the process that learns that its connection broke, the connection's name, and why."""
        self.loses = 0.0
        """The share of datagrams that is lost, and of those that come twice."""

    # Links

    def state(self, source: str, target: str) -> LinkState:
        return self._states.get((source, target), LinkState.UP)

    def flows(self, source: str, target: str) -> bool:
        return self.state(source, target) is LinkState.UP

    def set_link(self, source: str, target: str, state: LinkState) -> None:
        """Change one direction. A cut breaks the pair's connections; an open link delivers what waits."""
        self._states[source, target] = state
        for connection in list(self._open):
            if connection.joins(source, target):
                if state is LinkState.CUT:
                    connection.break_off("the link is cut")
                elif state is LinkState.HALF_OPEN:
                    wait_s = self.dice.between(*KEEPALIVE_S, "keepalive", connection.name)
                    self.scheduler.after(wait_s, connection.break_if_half_open, source, target)
                elif state is LinkState.UP:
                    connection.deliver_waiting(source)
                    connection.end_if_left()

    def slow_down(self, source: str, target: str, extra_s: float) -> None:
        """Let messages take so much longer; 0 ends it."""
        self._extra_s[source, target] = extra_s

    def delay_of(self, source: str, target: str, name: object) -> float:
        number = self._numbers[name] = self._numbers.get(name, 0) + 1
        drawn = self.dice.between(*self._delay_s, "delay", name, number)
        return drawn + self._extra_s.get((source, target), 0.0)

    # What travels

    def connect(self, source: Process, target: Process, name: object) -> Connection | None:
        """Open a connection; None if the target is dead, or a cut link leads there."""
        states = self.state(source.name, target.name), self.state(target.name, source.name)
        if not target.is_alive or LinkState.CUT in states:
            return None
        number = self._numbers[name, "connections"] = self._numbers.get((name, "connections"), 0) + 1
        connection = Connection(self, source, target, (name, number))
        self._open.append(connection)
        return connection

    def forget(self, connection: Connection) -> None:
        if connection in self._open:
            self._open.remove(connection)

    def has_traffic(self, one: Process, other: Process) -> bool:
        """Return whether any message is on its way between two processes."""
        return any(
            connection.num_travelling
            for connection in self._open
            if {connection.ends[0], connection.ends[1]} == {one, other}
        )

    def datagram(self, source: Process, target: Process, name: object, call: Callable[[], None]) -> None:
        """Send a datagram, after which `call` is made at the target: never, once or twice."""
        trip = self.begin_trip(source.name, target.name, "", name, None)
        if not self.flows(source.name, target.name):
            return
        number = self._numbers[name, "datagrams"] = self._numbers.get((name, "datagrams"), 0) + 1
        if self.dice.happens(self.loses, "lost", name, number):
            return
        copies = 2 if self.dice.happens(self.loses, "doubled", name, number) else 1
        for _ in range(copies):
            delay_s = self.delay_of(source.name, target.name, name)
            if trip is None:
                self.scheduler.after(delay_s, target.do, call)
            else:
                trip.due_at = self.scheduler.now + delay_s
                self.scheduler.after(delay_s, target.do, self._end_trip, trip, call)

    # What is noted

    def begin_trip(self, source: str, target: str, what: str, name: object, message: Any) -> Trip | None:
        """Note a message that is sent; None if nobody wants to see it."""
        if self.trace is None:
            return None
        trip = Trip(source, target, what, self.scheduler.now)
        self.trace(trip, name, message)
        return trip

    def _end_trip(self, trip: Trip, call: Callable[[], None]) -> None:
        trip.taken_at = self.scheduler.now
        call()


class Connection:
    """A stream of messages in both directions between two processes."""

    def __init__(self, network: Network, one: Process, other: Process, name: object) -> None:
        self.ends = (one, other)
        self.name = name
        self._network = network
        self._hear: list[Callable[[Any], None]] = [_ignore, _ignore]
        self._on_broken: list[Callable[[str], None]] = [_ignore, _ignore]
        self._waiting: list[deque[tuple[Trip | None, Any]]] = [deque(), deque()]
        """Messages of a half-open link, by their sender."""
        self._last_at = [0.0, 0.0]
        self._is_over = [False, False]
        self._is_closed = [False, False]
        """Which ends have closed it in order."""
        self.num_travelling = 0
        one.on_end.append(self._one_died)
        other.on_end.append(self._other_died)

    def joins(self, source: str, target: str) -> bool:
        return {self.ends[0].name, self.ends[1].name} == {source, target}

    @property
    def is_open(self) -> bool:
        return not any(self._is_over)

    def listen(self, process: Process, hear: Callable[[Any], None], on_broken: Callable[[str], None]) -> None:
        """Set what an end does with messages, and when the connection breaks."""
        place = self.ends.index(process)
        self._hear[place], self._on_broken[place] = hear, on_broken

    def send(self, process: Process, message: Any, what: str = "") -> None:
        """Send a message from one end. Nothing is sent over what is broken."""
        place = self.ends.index(process)
        if self._is_over[place] or not process.is_alive:
            return
        source, target = process.name, self.ends[1 - place].name
        self.num_travelling += 1
        trip = self._network.begin_trip(source, target, what, self.name, message)
        if self._waiting[place] or not self._network.flows(source, target):
            self._waiting[place].append((trip, message))
        else:
            self._travel(place, trip, message)

    def _travel(self, place: int, trip: Trip | None, message: Any) -> None:
        source, target = self.ends[place], self.ends[1 - place]
        delay_s = self._network.delay_of(source.name, target.name, (self.name, place))
        at = self._last_at[place] = max(self._last_at[place], self._network.scheduler.now + delay_s)
        if trip is not None:
            trip.due_at = at
        self._network.scheduler.at(at, self._arrive, 1 - place, trip, message)

    def _arrive(self, place: int, trip: Trip | None, message: Any) -> None:
        """A message has come to its host; its process takes it when it runs."""
        self.ends[place].do(self._take, place, trip, message)

    def _take(self, place: int, trip: Trip | None, message: Any) -> None:
        self.num_travelling -= 1
        if not self._is_over[place]:
            if trip is not None:
                trip.taken_at = self._network.scheduler.now
            self._hear[place](message)
        elif trip is not None:
            trip.is_unwanted = self._is_closed[place]

    def deliver_waiting(self, source: str) -> None:
        """The link from `source` is up again: what waited goes on, in its order."""
        place = 0 if self.ends[0].name == source else 1
        waiting, self._waiting[place] = self._waiting[place], deque()
        for trip, message in waiting:
            self._travel(place, trip, message)

    def close(self, process: Process, reason: str = "closed by the other end") -> None:
        """End it in order from one side; the other one learns of it behind what was sent before."""
        place = self.ends.index(process)
        if self._is_over[place]:
            return
        self._is_over[place] = self._is_closed[place] = True
        other = self.ends[1 - place]
        if self._network.flows(process.name, other.name):
            delay_s = self._network.delay_of(process.name, other.name, (self.name, place))
            at = max(self._last_at[place], self._network.scheduler.now + delay_s)
            self._network.scheduler.at(at, self._notice, 1 - place, reason)
        self._end_if_over()

    def break_off(self, reason: str) -> None:
        """Break it for both ends; messages that have not arrived are lost."""
        for place in (0, 1):
            if not self._is_over[place]:
                self._notice_later(place, reason)

    def end_if_left(self) -> None:
        """Tell an end that the other one is gone, or has closed it, now that the link is up again."""
        for place, process in enumerate(self.ends):
            if self._is_over[1 - place]:
                continue
            if not process.is_alive:
                self._died(place)
            elif self._is_over[place] and self._network.flows(process.name, self.ends[1 - place].name):
                at = max(self._last_at[place], self._network.scheduler.now + NOTICED_S[1])
                self._network.scheduler.at(at, self._notice, 1 - place, "closed by the other end")

    def break_if_half_open(self, source: str, target: str) -> None:
        if self._network.state(source, target) is LinkState.HALF_OPEN:
            self.break_off("no response to keepalive")

    def _notice_later(self, place: int, reason: str) -> None:
        dice, scheduler = self._network.dice, self._network.scheduler
        scheduler.after(dice.between(*NOTICED_S, "noticed", self.name, place), self._notice, place, reason)

    def _notice(self, place: int, reason: str) -> None:
        if not self._is_over[place]:
            self.ends[place].do(self._broken, place, reason)

    def _broken(self, place: int, reason: str) -> None:
        if self._is_over[place]:
            return
        self._is_over[place] = True
        if self._network.trace_broken is not None:
            self._network.trace_broken(self.ends[place].name, self.name, reason)
        self._on_broken[place](reason)
        self._end_if_over()

    def _one_died(self) -> None:
        self._died(0)

    def _other_died(self) -> None:
        self._died(1)

    def _died(self, place: int) -> None:
        self._is_over[place] = True
        dead, other = self.ends[place], self.ends[1 - place]
        if self._network.flows(dead.name, other.name):
            self._notice_later(1 - place, f"{dead.name} is gone")
        self._end_if_over()

    def _end_if_over(self) -> None:
        if all(self._is_over):
            self.num_travelling = 0
            self._network.forget(self)


def _ignore(_: Any) -> None:
    pass
