"""Whatever ends a request from outside, and in whatever phase: what it held is given up at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from router.core.core import RouterCore
from router.core.model.actions import (
    Action,
    Dequeue,
    Enqueue,
    ReleaseCredit,
    ReleaseLease,
    SendCancel,
    SendDecode,
    SendPrefill,
    SendReceive,
    SetTimer,
    Settle,
)
from router.core.model.events import (
    CancelAsked,
    ClientGone,
    Enqueued,
    Event,
    Granted,
    SettleAnswered,
    StepReported,
    StoreCall,
    StoreFailed,
    TimerFired,
    TimerKind,
    WorkerLoad,
)
from runtime.state.records import Settled
from scheduling.columns import TokenColumns
from scheduling.placement import Placement
from scheduling.request import Slo
from tests.router.core_driver import ARRIVAL, ONE, call, core_of

SOURCE = replace(ONE, worker_id="p1", role="prefill", address="p1:1")
KEY = "t/r1/0"
LOAD = WorkerLoad(free_blocks=64)
GRANTED = Granted(KEY, SOURCE.key, ONE.key)
SETTLED = SettleAnswered(KEY, SOURCE.key, ONE.key, Settled.OK)


class Scene:
    """One request on its way, and what its store and its workers have of it by what the core had them do."""

    def __init__(self) -> None:
        self.core: RouterCore = core_of("slack", SOURCE, ONE, placement=Placement.DISAGGREGATED)
        self.held: set[tuple[str, ...]] = set()
        self.handle = 0
        self.deadline: SetTimer | None = None

    def tell(self, *events: Event) -> None:
        for event in events:
            match event:
                case Granted(request_key, worker_key, decode_key):
                    self.held -= {("place", request_key)}
                    self.held |= {("grant", request_key), ("credit", request_key, worker_key)}
                    self.held |= {("lease", request_key, decode_key)}
                case SettleAnswered(request_key, _, decode_key, Settled.OK):
                    self.held -= {("grant", request_key)}
                    self.held |= {("lease", request_key, decode_key)}
            for action in self.core.on(event, 1.0):
                self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Enqueue(entry):
                self.held |= {("place", entry.request_key)}
            case Dequeue(request_key):
                self.held -= {("place", request_key), ("grant", request_key)}
            case ReleaseCredit(request_key, worker_key):
                self.held -= {("credit", request_key, worker_key)}
            case ReleaseLease(request_key, worker_key):
                self.held -= {("lease", request_key, worker_key)}
            case SendPrefill(worker_key, spec) | SendReceive(worker_key, spec) | SendDecode(worker_key, spec):
                self.handle = spec.handle
                self.held |= {("sequence", worker_key)}
            case SendCancel(worker_key):
                self.held -= {("sequence", worker_key)}
            case SetTimer(timer) if timer.kind is TimerKind.DEADLINE:
                self.deadline = action
            case Settle():
                assert ("grant", KEY) in self.held

    def token(self, worker_key: str, index: int) -> StepReported:
        prefilled = [self.handle] if worker_key == SOURCE.key else []
        tokens = TokenColumns([self.handle], [0], [index], [9], [0])
        return StepReported(
            worker_key, tokens, LOAD, 0.01, prefilled=prefilled, cached_tokens=[0] * len(prefilled)
        )


def arrive(scene: Scene) -> None:
    scene.tell(call(ARRIVAL, slo=Slo(deadline_ms=9000)))


def wait(scene: Scene) -> None:
    arrive(scene)
    scene.tell(Enqueued(KEY, 0, 0))


def be_granted_early(scene: Scene) -> None:
    arrive(scene)
    scene.tell(GRANTED)


def settle(scene: Scene) -> None:
    wait(scene)
    scene.tell(GRANTED)


def prefill(scene: Scene) -> None:
    settle(scene)
    scene.tell(SETTLED)
    assert ("sequence", SOURCE.key) in scene.held


def hand_over(scene: Scene) -> None:
    prefill(scene)
    scene.tell(scene.token(SOURCE.key, 0))


def decode(scene: Scene) -> None:
    hand_over(scene)
    scene.tell(scene.token(ONE.key, 0), scene.token(ONE.key, 1))


def be_stranded(scene: Scene) -> None:
    settle(scene)
    scene.tell(StoreFailed(StoreCall.SETTLE, KEY, "gone"))


def cancel(_: Scene) -> Event:
    return CancelAsked("t", "r1")


def hang_up(_: Scene) -> Event:
    return ClientGone(ARRIVAL.listener)


def run_out_of_time(scene: Scene) -> Event:
    assert scene.deadline is not None
    return TimerFired(scene.deadline.timer)


@pytest.mark.parametrize("way", [cancel, hang_up, run_out_of_time])
@pytest.mark.parametrize(
    "reach", [arrive, wait, be_granted_early, settle, prefill, hand_over, decode, be_stranded]
)
def test_all_that_was_held_is_given_up_at_once(
    reach: Callable[[Scene], None], way: Callable[[Scene], Event]
) -> None:
    scene = Scene()
    reach(scene)
    assert scene.held
    scene.tell(way(scene))
    if reach in (settle, be_stranded):
        # The store was asked for the lease, and may yet have made it.
        scene.tell(SETTLED)
    assert scene.held == set()
    assert not scene.core.state.groups
    assert not scene.core.is_running("t", "r1")
    assert not any(worker.groups for worker in scene.core.state.fleet.workers.values())


@pytest.mark.parametrize("late", [GRANTED, SETTLED, Enqueued(KEY, 0, 0)])
def test_what_is_answered_to_a_request_that_has_ended_is_given_back(late: Event) -> None:
    scene = Scene()
    wait(scene)
    scene.tell(cancel(scene), late)
    assert scene.held == set()


def test_late_tokens_of_a_request_that_has_ended_go_nowhere() -> None:
    scene = Scene()
    hand_over(scene)
    late = scene.token(ONE.key, 0)
    scene.tell(cancel(scene))
    before = scene.core.state.counters.relayed_tokens
    scene.tell(late)
    assert scene.core.state.counters.relayed_tokens == before
