"""A prefill worker leaves in order while the decode worker of its request waits for memory."""

from __future__ import annotations

import pytest

from router.core.core import RouterCore
from router.core.model.actions import AttemptFailed, TellRetrying
from router.core.model.events import CancelAsked, StepReported, WorkerLoad, WorkerLost
from router.core.model.state import CoreConfig
from router.core.recover import BEGINS_S, BEGINS_STEPS
from scheduling.columns import TokenColumns
from scheduling.placement import Placement
from scheduling.request import FinishReason, Slo
from tests.router.core_world import World

MAX_TOKENS = 4
LONG_STEP_S = 3.0


class Leaving(World):
    """The prefill worker p has computed a prompt and left; the decode worker d has no memory for it yet."""

    def __init__(self, longest_step_s: float = 0.0) -> None:
        super().__init__()
        self.core = RouterCore(CoreConfig("router-a", placement=Placement.DISAGGREGATED))
        self.join("p", "prefill")
        self.join("d", "decode")
        self.arrive("r", 1, MAX_TOKENS, 5.0, Slo())
        self.source, self.target = self.workers["p:1"], self.workers["d:2"]
        while not (self.source.running and self.target.running):
            self.answer(self.calls.pop(0))
        self.tell(StepReported("d:2", TokenColumns(), self.target.load, longest_step_s))
        self.step(self.source, list(self.source.running))
        self.tell(StepReported("p:1", TokenColumns(), WorkerLoad(draining=True)))
        self.tell(WorkerLost("p:1", "it ended"))
        self.join("p2", "prefill")

    @property
    def waits(self) -> bool:
        return bool(self.target.running)

    def failures(self) -> list[object]:
        """Return what says that an attempt has failed."""
        actions = [action for _, _, actions in self.log for action in actions]
        return [action for action in actions if isinstance(action, AttemptFailed | TellRetrying)]


def until_cancelled(world: Leaving, limit_s: float) -> float:
    """Return after how many seconds the decode worker was told to wait no more."""
    waited_s = 0.0
    while world.waits and waited_s < limit_s:
        world.pass_time(0.1)
        waited_s += 0.1
    return waited_s


@pytest.mark.parametrize(
    ("longest_step_s", "begins_s"), [(0.0, BEGINS_S), (LONG_STEP_S, BEGINS_STEPS * LONG_STEP_S)]
)
def test_what_nobody_will_send_is_computed_anew_soon(longest_step_s: float, begins_s: float) -> None:
    world = Leaving(longest_step_s)
    waited_s = until_cancelled(world, 60.0)
    assert begins_s < waited_s < begins_s + 0.5
    world.behave()
    assert world.heard[1].ended == {0: FinishReason.LENGTH}
    assert not world.failures()
    assert world.core.state.counters.retried_attempts == 0
    assert not world.core.state.without_source


def test_a_decode_worker_that_has_the_kv_goes_on() -> None:
    """Its first token comes before the router would have asked another worker."""
    world = Leaving()
    world.pass_time(BEGINS_S / 2)
    (handle,) = world.target.running
    world.step(world.target, [handle])
    for _ in range(50):
        world.pass_time(0.1)
    assert list(world.target.running) == [handle]
    assert not world.core.state.without_source
    world.behave()
    assert world.heard[1].ended == {0: FinishReason.LENGTH}


def test_a_request_that_is_cancelled_meanwhile_is_forgotten() -> None:
    world = Leaving()
    world.tell(CancelAsked("t", "r"))
    assert not world.core.state.without_source
    assert not world.waits
