"""One process of a simulated fleet: what it runs on, and the three states that it can be in."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from tests.dst.world.dice import Dice
from tests.dst.world.loop import ProcessLoop
from tests.dst.world.scheduler import Scheduler


class State(enum.Enum):
    RUNNING = "running"
    STOPPED = "stopped"
    """Standing still, as by SIGSTOP or a virtual machine that is moved: it goes on where it stood."""
    DEAD = "dead"
    """Its calls are dropped. No `finally` of it runs."""


class Process:
    """A process by name; one that is started again under its name is another process."""

    def __init__(
        self, name: str, scheduler: Scheduler, dice: Dice, *, offset_s: float = 0.0, rate: float = 1.0
    ) -> None:
        """Its clock shows `offset_s` at the start, and runs at `rate` seconds a second."""
        self.name = name
        self.state = State.RUNNING
        self.scheduler = scheduler
        self._dice = dice
        self._num_drawn: dict[str, int] = {}
        self._shown, self._at, self._rate = offset_s, scheduler.now, rate
        self.began_at = scheduler.now
        self.ended_at: float | None = None
        """When it died; None if it outlived the run."""
        self._held: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._wakes = 0
        self.loop = ProcessLoop(self)
        self.on_end: list[Callable[[], None]] = []
        """Calls that are made when it dies: its connections break."""

    @property
    def is_alive(self) -> bool:
        return self.state is not State.DEAD

    @property
    def runs(self) -> bool:
        return self.state is State.RUNNING

    # Time

    def clock(self) -> float:
        """Return its own time in seconds, which never runs backwards."""
        return self._shown + (self.scheduler.now - self._at) * self._rate

    def jump(self, seconds: float) -> None:
        """Let its clock jump forward."""
        self._shown, self._at = self.clock() + seconds, self.scheduler.now
        self.loop.set_alarm()

    def wake_at(self, when: float, call: Callable[[], None]) -> None:
        """Make a call when its clock shows `when`; a later request takes the place of this one."""
        self._wakes += 1
        left = max(0.0, when - self.clock()) / self._rate
        self.scheduler.after(left, self._wake, self._wakes, call)

    def _wake(self, number: int, call: Callable[[], None]) -> None:
        if number == self._wakes:
            self.do(call)

    def draw(self, name: str, low: float, high: float) -> float:
        """Return a number that depends on this process, the name, and how often it was drawn."""
        count = self._num_drawn[name] = self._num_drawn.get(name, 0) + 1
        return self._dice.between(low, high, self.name, name, count)

    # Calls

    def soon(self, call: Callable[..., object], *args: Any) -> None:
        self.scheduler.soon(self.do, call, *args)

    def do(self, call: Callable[..., object], *args: Any) -> None:
        """Make a call as this process: now, when it goes on, or never."""
        if self.state is State.RUNNING:
            self.loop.within(call, *args)
        elif self.state is State.STOPPED:
            self._held.append((call, args))

    # Its life

    def stop(self) -> None:
        if self.state is State.RUNNING:
            self.state = State.STOPPED

    def go_on(self) -> None:
        if self.state is State.STOPPED:
            self.state = State.RUNNING
            held, self._held = self._held, []
            for call, args in held:
                self.scheduler.soon(self.do, call, *args)

    def kill(self) -> None:
        if self.state is State.DEAD:
            return
        self.state = State.DEAD
        self.ended_at = self.scheduler.now
        self._held.clear()
        for call in self.on_end:
            call()
