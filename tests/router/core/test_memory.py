"""Ended requests leave a router's memory at once: by reference counting, without the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from router.core.core import RouterCore
from router.core.model.actions import Reject, TellFinished
from router.core.model.events import (
    CancelAsked,
    SequenceFailed,
    StepReported,
    WorkerJoined,
    WorkerLoad,
    WorkerLost,
)
from router.core.model.session import Choice, Group, Session
from scheduling.columns import TokenColumns
from scheduling.request import FailureReason, FinishReason, Slo
from tests.router.core_driver import ARRIVAL, COST, ONE, TWO, arrive, call, core_of, start, tell

MANY = 200
IDLE = WorkerLoad(free_blocks=64)


@pytest.fixture
def garbage() -> Iterator[Callable[[], list[object]]]:
    """Return a function that lists the parts of requests which only the collector could have freed."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)

    def found() -> list[object]:
        gc.collect()
        return [action for action in gc.garbage if isinstance(action, Session | Group | Choice)]

    yield found
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


def finish(core: RouterCore, number: int) -> None:
    worker_key, handle = start(core, number)
    last = TokenColumns([handle], [0], [0], [9], [int(FinishReason.EOS)])
    tell(core, StepReported(worker_key, last, IDLE, 0.01))


def cancel(core: RouterCore, number: int) -> None:
    start(core, number)
    tell(core, CancelAsked("t", f"r{number}"))


def leave_queue(core: RouterCore, number: int) -> None:
    arrive(core, number)
    tell(core, CancelAsked("t", f"r{number}"))


def refuse(core: RouterCore, number: int) -> None:
    tell(core, StepReported(ONE.key, TokenColumns(), replace(IDLE, running=1)))
    arrive(core, number, call(ARRIVAL, slo=Slo(ttft_ms=10)))
    assert ("t", f"r{number}") not in core.state.live


def ask_the_impossible(core: RouterCore, number: int) -> None:
    told = arrive(core, number, call(ARRIVAL, slo=Slo(ttft_ms=1)))
    assert any(isinstance(action, Reject) for action in told)


def fail_for_good(core: RouterCore, number: int) -> None:
    worker_key, handle = start(core, number, call(ARRIVAL, failed_attempts=4))
    failure = SequenceFailed(handle, FailureReason.NO_BLOCKS, "none")
    told = tell(core, StepReported(worker_key, TokenColumns(), IDLE, 0.01, failures=[failure]))
    assert any(isinstance(action, TellFinished) for action in told)


def lose_worker(core: RouterCore, number: int) -> None:
    worker_key, _ = start(core, number)
    tell(core, WorkerLost(worker_key, "gone"), CancelAsked("t", f"r{number}"))
    facts = ONE if worker_key == ONE.key else TWO
    tell(core, WorkerJoined(facts, IDLE, COST))


@pytest.mark.parametrize(
    "end", [finish, cancel, leave_queue, refuse, ask_the_impossible, fail_for_good, lose_worker]
)
def test_whatever_ends_a_request_no_cycle_keeps_it(
    end: Callable[[RouterCore, int], None], garbage: Callable[[], list[object]]
) -> None:
    core = core_of("slack")
    for number in range(1, MANY + 1):
        end(core, number)
        tell(core, *(StepReported(worker.key, TokenColumns(), IDLE) for worker in (ONE, TWO)))
    assert not core.state.live
    assert not core.state.groups
    core.state.retained.clear()
    core.state.by_sid.clear()
    assert garbage() == []
