"""Ended requests are remembered for their time and no longer, also by a router without calls."""

from __future__ import annotations

from router.core.arrive import find
from router.core.core import FORGET_S, RouterCore
from router.core.model.actions import Action, SetTimer
from router.core.model.events import CancelAsked, TimerFired
from tests.router.core_driver import ARRIVAL, arrive, call, core_of, tell

KEPT_S = 60.0
EVENTS_OF_ONE = 8
"""Timers that fire for one request that ends at once, at most: an idle router has nothing else to do."""


class Idle:
    """Fires the core's timers when they are due; nothing else happens."""

    def __init__(self, core: RouterCore) -> None:
        self._core = core
        self._timers: list[SetTimer] = []
        self.num_fired = 0

    def end_one(self, number: int, at: float) -> None:
        """A request comes and is cancelled at once."""
        actions = arrive(self._core, number, call(ARRIVAL, received_at=at))
        actions += tell(self._core, CancelAsked("t", f"r{number}"), now=at)
        self._take(actions)

    def run(self, until: float) -> None:
        while self._timers and self._timers[0].at <= until:
            due = self._timers.pop(0)
            self.num_fired += 1
            self._take(tell(self._core, TimerFired(due.timer), now=due.at))

    def _take(self, actions: list[Action]) -> None:
        self._timers += [action for action in actions if isinstance(action, SetTimer)]
        self._timers.sort(key=lambda one: one.at)


def test_an_idle_router_forgets_what_has_ended_when_its_time_is_over() -> None:
    core = core_of("slack")
    idle = Idle(core)
    idle.end_one(1, at=1.0)
    idle.run(until=1.0 + KEPT_S - 0.01)
    assert find(core.state, "t", "r1") is not None
    idle.run(until=1.0 + KEPT_S)
    assert find(core.state, "t", "r1") is None
    assert not core.state.by_sid
    idle.run(until=1000.0)
    assert idle.num_fired <= EVENTS_OF_ONE


def test_each_is_kept_for_its_own_time() -> None:
    core = core_of("slack")
    idle = Idle(core)
    ends = {1: 1.0, 2: 10.0, 3: 30.0}
    for number, at in ends.items():
        idle.run(until=at)
        idle.end_one(number, at)
    for number, at in ends.items():
        idle.run(until=at + KEPT_S - 0.01)
        assert find(core.state, "t", f"r{number}") is not None
        idle.run(until=at + KEPT_S + FORGET_S)
        assert find(core.state, "t", f"r{number}") is None
