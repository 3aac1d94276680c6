"""A client that is gone has its grace to come back, each time anew."""

from __future__ import annotations

import pytest

from router.core.core import RouterCore
from router.core.model.actions import Action, Enqueue, SendCancel, SetTimer, TellChoiceFinished, TellFinished
from router.core.model.events import Arrived, CancelAsked, ClientGone, TimerFired, TimerKind
from scheduling.request import FinishReason
from tests.router.core_driver import ARRIVAL, call, core_of, start, tell

GRACE_S = 5.0
RESUMABLE = call(ARRIVAL, resume_grace_s=GRACE_S)


def go(core: RouterCore, listener: int, now: float) -> SetTimer:
    """The call breaks; the timer of its grace."""
    (timer,) = _graces(tell(core, ClientGone(listener), now=now))
    return timer


def come_back(core: RouterCore, listener: int, now: float) -> None:
    again = call(RESUMABLE, listener=listener, request_id="r1", session=listener - 1)
    assert not _graces(tell(core, again, now=now))


def fire(core: RouterCore, timer: SetTimer) -> list[Action]:
    return tell(core, TimerFired(timer.timer), now=timer.at)


def _graces(actions: list[Action]) -> list[SetTimer]:
    return [
        action for action in actions if isinstance(action, SetTimer) and action.timer.kind is TimerKind.GRACE
    ]


def test_a_second_absence_has_a_whole_grace_of_its_own() -> None:
    core = core_of("slack")
    key, handle = start(core, 1, RESUMABLE)
    first = go(core, 1, now=2.0)
    come_back(core, 2, now=3.0)
    second = go(core, 2, now=6.0)
    assert (first.at, second.at) == (2.0 + GRACE_S, 6.0 + GRACE_S)
    assert SendCancel(key, (handle,)) not in fire(core, first)
    assert core.is_running("t", "r1"), "a second after it went again"
    assert SendCancel(key, (handle,)) in fire(core, second)
    assert not core.is_running("t", "r1")


def test_who_is_back_is_not_ended_by_a_grace_of_before() -> None:
    core = core_of("slack")
    start(core, 1, RESUMABLE)
    timer = go(core, 1, now=2.0)
    come_back(core, 2, now=3.0)
    fire(core, timer)
    assert core.is_running("t", "r1")


def test_a_client_that_comes_back_is_not_told_of_an_unwanted_end() -> None:
    """Another router had the client meanwhile, and died in its turn."""
    core = core_of("slack")
    start(core, 1, RESUMABLE)
    fire(core, go(core, 1, now=2.0))
    told = tell(core, call(RESUMABLE, listener=2, request_id="r1", session=2), now=8.0)
    assert [action for action in told if isinstance(action, Enqueue)]
    assert not [action for action in told if isinstance(action, (TellFinished, TellChoiceFinished))]
    assert core.is_running("t", "r1")


@pytest.mark.parametrize("asked", [ARRIVAL, RESUMABLE], ids=["no grace", "grace"])
def test_who_was_given_up_may_ask_again_from_the_start(asked: Arrived) -> None:
    """Without a grace it is given up at once."""
    core = core_of("slack")
    start(core, 1, asked)
    for timer in _graces(tell(core, ClientGone(1), now=2.0)):
        fire(core, timer)
    assert not core.is_running("t", "r1")
    tell(core, call(asked, listener=2, request_id="r1"), now=8.0)
    assert core.is_running("t", "r1")


@pytest.mark.parametrize("is_given_up", [False, True])
def test_what_was_cancelled_stays_so(is_given_up: bool) -> None:
    core = core_of("slack")
    start(core, 1, RESUMABLE)
    timer = go(core, 1, now=2.0)
    if is_given_up:
        fire(core, timer)
    tell(core, CancelAsked("t", "r1"), now=7.5)
    told = tell(core, call(RESUMABLE, listener=2, request_id="r1", session=1), now=8.0)
    assert [action.outcome.reasons for action in told if isinstance(action, TellFinished)] == [
        (FinishReason.CANCELLED,)
    ]
    assert not core.is_running("t", "r1")
