"""A router that leaves sends on who can go elsewhere, and keeps who cannot."""

from __future__ import annotations

from router.core.core import RouterCore
from router.core.model.actions import Reject, SendCancel, TellFinished, TellLeaving
from router.core.model.events import (
    Arrived,
    ClientGone,
    RouterLeaving,
    RouterStopping,
    StepReported,
    WorkerLoad,
)
from router.errors import Unavailable
from router.request import Received
from scheduling.columns import TokenColumns
from tests.router.core_driver import ARRIVAL, call, core_of, start, tell

RESUMABLE = call(ARRIVAL, resume_grace_s=5.0)


def streaming(core: RouterCore, number: int, event: Arrived) -> tuple[str, int]:
    key, handle = start(core, number, event)
    tell(core, StepReported(key, TokenColumns([handle], [0], [0], [9], [0]), WorkerLoad(running=1)), now=2.0)
    return key, handle


def resume_of(number: int) -> Arrived:
    return call(RESUMABLE, listener=9, request_id=f"r{number}", session=1, received=(Received(0, (9,)),))


def test_only_those_who_can_resume_are_told() -> None:
    core = core_of("slack")
    streaming(core, 1, ARRIVAL)
    streaming(core, 2, RESUMABLE)
    told = tell(core, RouterLeaving(), now=3.0)
    assert told == [TellLeaving(2)]
    assert core.is_running("t", "r1")
    assert core.is_running("t", "r2"), "until it goes, it is served"


def test_who_has_gone_elsewhere_is_forgotten_at_once() -> None:
    core = core_of("slack")
    key, handle = streaming(core, 2, RESUMABLE)
    tell(core, RouterLeaving(), now=3.0)
    gone = tell(core, ClientGone(2), now=3.1)
    assert SendCancel(key, (handle,)) in gone
    assert not core.is_running("t", "r2")


def test_who_broke_off_before_is_not_waited_for() -> None:
    core = core_of("slack")
    key, handle = streaming(core, 2, RESUMABLE)
    tell(core, ClientGone(2), now=2.5)
    assert core.is_running("t", "r2")
    assert SendCancel(key, (handle,)) in tell(core, RouterLeaving(), now=3.0)


def test_neither_the_new_nor_the_resumed_are_told_that_they_are_over() -> None:
    core = core_of("slack")
    streaming(core, 2, RESUMABLE)
    tell(core, RouterLeaving(), ClientGone(2), now=3.0)
    for came in (resume_of(2), call(ARRIVAL, listener=9, request_id="new")):
        (rejected,) = [action for action in tell(core, came, now=3.1) if isinstance(action, Reject)]
        assert isinstance(rejected.error, Unavailable)


def test_at_the_end_whoever_stayed_may_resume_elsewhere() -> None:
    core = core_of("slack")
    streaming(core, 1, ARRIVAL)
    ended = tell(core, RouterLeaving(), RouterStopping(), now=3.0)
    (rejected,) = [action for action in ended if isinstance(action, Reject)]
    assert isinstance(rejected.error, Unavailable)
    assert not [action for action in ended if isinstance(action, TellFinished)]
