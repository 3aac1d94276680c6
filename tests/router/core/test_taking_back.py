"""A call that came after the request was resumed elsewhere takes it back; calls that came before it end."""

from __future__ import annotations

import pytest

from router.core.core import RouterCore
from router.core.model.actions import Action, Enqueue, Reject, TellRetrying
from router.core.model.events import Arrived, ClientGone, SequenceFailed, StepReported
from router.core.model.session import Call
from router.core.recover import MAX_DRIFT, came_after
from router.errors import Superseded
from scheduling.columns import TokenColumns
from scheduling.request import FailureReason
from tests.router.core.test_leaving import RESUMABLE
from tests.router.core.test_recovery import IDLE, dispatched, sent
from tests.router.core_driver import call, core_of, tell

SECOND_AT, SENT_AT, NOW = 3.0, 4.0, 5.0
SECOND = call(RESUMABLE, listener=2, received_at=SECOND_AT)
LATER_SESSION = 4
"""The session that the worker knows from another router."""


def dispatched_for(second: Arrived) -> tuple[RouterCore, str]:
    """Return a router that has sent the request of two calls to a worker, and the worker's key."""
    core = core_of("slack")
    queued = tell(core, RESUMABLE)
    tell(core, second, now=SECOND_AT)
    return core, dispatched(core, queued, 0, now=SENT_AT)


def superseded(core: RouterCore, worker_key: str, came_at: float) -> list[Action]:
    """The worker refuses the request's attempt; the last call of the later session came at this time."""
    (handle,) = core.state.fleet.workers[worker_key].groups
    failure = SequenceFailed(
        handle, FailureReason.SUPERSEDED, "a later one has been seen", LATER_SESSION, NOW - came_at
    )
    return tell(core, StepReported(worker_key, TokenColumns(), IDLE, failures=(failure,)), now=NOW)


def rejected(actions: list[Action]) -> dict[int, int]:
    """Return the session that each ended call is told, by listener."""
    errors = {action.listener: action.error for action in actions if isinstance(action, Reject)}
    return {key: error.current for key, error in errors.items() if isinstance(error, Superseded)}


def queued(actions: list[Action]) -> list[str]:
    return [action.entry.request_key for action in actions if isinstance(action, Enqueue)]


def test_a_later_call_takes_the_request_back() -> None:
    core, worker_key = dispatched_for(SECOND)
    told = superseded(core, worker_key, came_at=2.0)
    assert rejected(told) == {RESUMABLE.listener: LATER_SESSION}
    assert [action for action in told if isinstance(action, TellRetrying)] == [
        TellRetrying(SECOND.listener, 0, LATER_SESSION + 1)
    ]
    assert queued(told) == [f"t/r1/{LATER_SESSION + 1}"]


def test_other_routers_learn_when_the_later_call_came() -> None:
    core, worker_key = dispatched_for(SECOND)
    told = superseded(core, worker_key, came_at=2.0)
    spec = sent(core, told, LATER_SESSION + 1, now=NOW).spec
    assert (spec.fence.session, spec.session_age_seconds) == (LATER_SESSION + 1, NOW - SECOND_AT)


def test_earlier_calls_end() -> None:
    core, worker_key = dispatched_for(SECOND)
    told = superseded(core, worker_key, came_at=4.0)
    assert rejected(told) == dict.fromkeys((RESUMABLE.listener, SECOND.listener), LATER_SESSION)
    assert not queued(told)
    assert not core.state.live


def test_a_call_is_not_judged_by_what_the_worker_said_before() -> None:
    """The report may have waited, and the call came meanwhile."""
    core = core_of("slack")
    worker_key = dispatched(core, tell(core, RESUMABLE), 0)
    tell(core, SECOND, now=SECOND_AT)
    told = superseded(core, worker_key, came_at=NOW)
    assert not rejected(told)
    assert queued(told) == ["t/r1/0"]
    told = superseded(core, dispatched(core, told, 0, now=NOW), came_at=2.0)
    assert queued(told) == [f"t/r1/{LATER_SESSION + 1}"]


def test_nothing_is_taken_back_for_a_call_that_broke() -> None:
    core, worker_key = dispatched_for(SECOND)
    tell(core, ClientGone(SECOND.listener), now=NOW)
    assert not queued(superseded(core, worker_key, came_at=2.0))
    assert not core.state.live


def test_a_resumption_in_an_older_session_takes_nothing_back() -> None:
    """Its client may have gone on elsewhere since; it came here late, from a router that was stalled."""
    core, worker_key = dispatched_for(call(SECOND, session=1))
    told = superseded(core, worker_key, came_at=2.0)
    assert rejected(told) == {SECOND.listener: LATER_SESSION}
    assert not queued(told)


def test_two_routers_may_serve_the_same_session() -> None:
    core = core_of("slack")
    worker_key = dispatched(core, tell(core, RESUMABLE), 0)
    tell(core, call(SECOND, session=LATER_SESSION), now=SECOND_AT)
    told = superseded(core, worker_key, came_at=4.0)
    assert not rejected(told)
    assert queued(told) == [f"t/r1/{LATER_SESSION}"]


@pytest.mark.parametrize(
    ("waited_s", "age_s", "is_later"), [(1.0, 2.0, True), (2.0, 1.0, False), (1.0, 1.0, False)]
)
def test_the_later_call_came_less_long_ago(waited_s: float, age_s: float, is_later: bool) -> None:
    assert came_after(Call(0, 10.0, 0.0), 10.0 + waited_s, age_s) is is_later


def test_clocks_that_drift_never_make_both_calls_the_later_one() -> None:
    """Each clock is off by half of what two clocks may differ by."""
    for one_s, other_s in ((100.0, 100.01), (100.01, 100.0), (100.0, 100.0)):
        slow_s, fast_s = one_s * (1 - MAX_DRIFT / 2), other_s * (1 + MAX_DRIFT / 2)
        here = came_after(Call(0, 0.0, 0.0), slow_s, fast_s)
        there = came_after(Call(0, 0.0, 0.0), fast_s, slow_s)
        assert not (here and there)
