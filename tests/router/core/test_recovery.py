"""Failed attempts are counted for a request across routers, and end it at the limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.core.core import RouterCore
from router.core.model.actions import (
    Action,
    AskGrants,
    AttemptFailed,
    Enqueue,
    FinalError,
    Reject,
    SendDecode,
    Settle,
    TellFinished,
    TellRetrying,
)
from router.core.model.events import (
    Arrived,
    ClientGone,
    Enqueued,
    Granted,
    GrantsAnswered,
    SequenceFailed,
    SettleAnswered,
    StepReported,
    Timer,
    TimerFired,
    TimerKind,
    WorkerJoined,
    WorkerLoad,
    WorkerLost,
)
from router.core.model.session import MAX_LOST
from router.core.recover import DOUBT_S, LONGEST_REST_S
from router.errors import Reason, Superseded, Unavailable
from runtime.state.records import Settled
from scheduling.columns import TokenColumns
from scheduling.request import FailureReason, FinishReason
from tests.router.core.test_leaving import RESUMABLE
from tests.router.core_driver import ARRIVAL, COST, ONE, TWO, call, core_of, tell

IDLE = WorkerLoad(free_blocks=64)


def dispatched(core: RouterCore, told: list[Action], session: int, now: float = 1.0) -> str:
    """The worker that gets the request, whose place in the queue was just asked for."""
    return sent(core, told, session, now).worker_key


def sent(core: RouterCore, told: list[Action], session: int, now: float = 1.0) -> SendDecode:
    """Return the command to the worker that gets the request, which was just queued."""
    key = f"t/r1/{session}"
    asks = [
        action for action in told + tell(core, Enqueued(key, 0, 0), now=now) if isinstance(action, AskGrants)
    ]
    granted = Granted(key, asks[0].worker.key, asks[0].worker.key)
    answered = GrantsAnswered(asks[0].worker.key)
    (settle,) = [action for action in tell(core, granted, answered, now=now) if isinstance(action, Settle)]
    settled = SettleAnswered(key, settle.prefill_key, settle.decoders[0].key, Settled.OK)
    (command,) = [action for action in tell(core, settled, now=now) if isinstance(action, SendDecode)]
    return command


CHORES = TimerFired(Timer(TimerKind.CHORES))


def killed(core: RouterCore, event: Arrived) -> list[Action]:
    """Return the actions when the worker that got it dies and does not come back."""
    worker_key = dispatched(core, tell(core, event), event.request.session)
    return tell(core, WorkerLost(worker_key, "it died")) + tell(core, CHORES, now=1.0 + DOUBT_S)


def told_of(actions: list[Action]) -> list[int]:
    return [action.failed_attempts for action in actions if isinstance(action, TellRetrying)]


def test_the_count_goes_on_from_router_to_router() -> None:
    counts, actions = [0], list[Action]()
    for session in range(5):
        event = call(RESUMABLE, session=session, failed_attempts=counts[-1])
        actions = killed(core_of("slack"), event)
        counts += told_of(actions)
    assert counts == [0, 1, 2, 3, 4, 5]
    (finished,) = [action for action in actions if isinstance(action, TellFinished)]
    assert finished.outcome.reasons == (FinishReason.FAILED,)
    assert "5 attempts failed" in finished.outcome.error


@pytest.mark.parametrize("count", [4, 5, 2**32 - 1])
def test_one_attempt_is_left_whatever_a_client_says(count: int) -> None:
    actions = killed(core_of("slack"), call(RESUMABLE, session=1, failed_attempts=count))
    assert [action for action in actions if isinstance(action, TellFinished)]


def test_who_comes_back_hears_what_failed_meanwhile() -> None:
    core = core_of("slack")
    worker_key = dispatched(core, tell(core, RESUMABLE), 0)
    tell(core, ClientGone(RESUMABLE.listener))
    assert told_of(tell(core, WorkerLost(worker_key, "it died"))) == []
    assert told_of(tell(core, call(RESUMABLE, listener=2, session=1))) == [1]


def test_a_call_whose_work_ends_with_it_is_told_too() -> None:
    """It may resume all the same, and brings the count."""
    assert told_of(killed(core_of("slack"), ARRIVAL)) == [1]


class Cuts:
    """The link to whoever has the request breaks again and again."""

    def __init__(self) -> None:
        self.core = core_of("slack")
        self.told = tell(self.core, RESUMABLE)
        self.now = 1.0

    def cut(self, *, comes_back: bool = True) -> list[Action]:
        """It breaks, and stands again; what the core does until the request has rested."""
        worker_key = dispatched(self.core, self.told, 0, self.now)
        lost = WorkerLost(worker_key, "the link was cut")
        self.told = tell(self.core, lost, now=self.now)
        if comes_back:
            (facts,) = [entry for entry in (ONE, TWO) if entry.key == worker_key]
            joined = WorkerJoined(facts, WorkerLoad(free_blocks=facts.num_blocks), COST)
            self.told += tell(self.core, joined, now=self.now)
        self.now += DOUBT_S
        self.told += tell(self.core, CHORES, now=self.now)
        return self.told


def test_links_that_break_are_not_held_against_a_request() -> None:
    """Their workers are here again as they were: no request has ended them."""
    cuts = Cuts()
    for _ in range(5):
        assert told_of(cuts.cut()) == [1, 0]


def test_a_request_that_breaks_every_link_is_given_up() -> None:
    cuts = Cuts()
    finals = [[action.final for action in cuts.cut() if isinstance(action, AttemptFailed)] for _ in range(10)]
    assert finals == [[False]] * 9 + [[True]]


def test_who_does_not_come_back_may_have_died_of_it() -> None:
    cuts = Cuts()
    assert told_of(cuts.cut(comes_back=False)) == [1]
    assert told_of(cuts.cut()) == [2, 1]


def test_the_last_word_waits_for_workers_that_may_be_back_in_a_moment() -> None:
    core = core_of("slack")
    worker_key = dispatched(core, tell(core, call(RESUMABLE, failed_attempts=4)), 0)
    told = tell(core, WorkerLost(worker_key, "the link was cut"))
    (facts,) = [entry for entry in (ONE, TWO) if entry.key == worker_key]
    told += tell(core, WorkerJoined(facts, IDLE, COST)) + tell(core, CHORES, now=1.0 + DOUBT_S)
    assert [action.final for action in told if isinstance(action, AttemptFailed)] == [False]
    assert [action for action in told if isinstance(action, Enqueue)]


def test_a_request_that_killed_five_workers_is_given_up() -> None:
    core = core_of("slack", ONE)
    told, now, rests = tell(core, RESUMABLE), 1.0, list[float]()
    while not [action for action in told if isinstance(action, TellFinished)]:
        worker_key, died = dispatched(core, told, 0, now), now
        successor = replace(ONE, incarnation=f"{len(rests) + 2}")
        told = tell(core, WorkerLost(worker_key, "it died"), WorkerJoined(successor, IDLE, COST), now=now)
        while not [action for action in told if isinstance(action, Enqueue | TellFinished)]:
            now += 0.05
            told = tell(core, StepReported(successor.key, TokenColumns(), IDLE), CHORES, now=now)
        rests.append(round(now - died, 1))
    assert rests == [0.0, 0.1, DOUBT_S, DOUBT_S, DOUBT_S]


def test_what_fails_again_rests_before_it_is_tried_again() -> None:
    """Else a fleet's only worker, which cannot do it now, would use up all attempts in a moment."""
    core = core_of("slack", ONE)
    told = tell(core, RESUMABLE)
    for number in range(2):
        dispatched(core, told, 0)
        (handle,) = core.state.fleet.workers[ONE.key].groups
        failure = SequenceFailed(handle, FailureReason.NO_BLOCKS, "none")
        told = tell(core, StepReported(ONE.key, TokenColumns(), IDLE, failures=(failure,)))
        assert [isinstance(action, Enqueue) for action in told].count(True) == 1 - number
    assert not [action for action in tell(core, CHORES, now=1.05) if isinstance(action, Enqueue)]
    assert [action for action in tell(core, CHORES, now=1.11) if isinstance(action, Enqueue)]


def test_a_failed_handoff_counts_only_if_its_source_dies() -> None:
    core = core_of("slack")
    worker_key = dispatched(core, tell(core, RESUMABLE), 0)
    (handle,) = core.state.fleet.workers[worker_key].groups
    failure = SequenceFailed(handle, FailureReason.HANDOFF, "lost")
    told = tell(core, StepReported(worker_key, TokenColumns(), IDLE, failures=(failure,)))
    assert told_of(told) == [0]
    assert told_of(tell(core, WorkerLost(worker_key, "it died"))) == [1]
    (facts,) = [entry for entry in (ONE, TWO) if entry.key == worker_key]
    assert told_of(tell(core, WorkerJoined(facts, IDLE, COST))) == [0]


def test_requests_waiting_without_workers_are_sent_elsewhere_in_time() -> None:
    core = core_of("slack", ONE)
    tell(core, RESUMABLE, Enqueued("t/r1/0", 0, 0), WorkerLost(ONE.key, "it died"))
    grace_s = core.state.config.no_worker_grace_s
    told = tell(core, CHORES, now=2.0) + tell(core, CHORES, now=1.9 + grace_s)
    assert not [action for action in told if isinstance(action, TellFinished | Reject)]
    told = tell(core, CHORES, now=2.1 + grace_s)
    (reject,) = [action for action in told if isinstance(action, Reject)]
    assert isinstance(reject.error, Unavailable)
    assert reject.error.reason is Reason.NO_WORKER
    assert not [action for action in told if isinstance(action, TellFinished)]


def test_a_client_that_comes_back_brings_what_failed_elsewhere() -> None:
    core = core_of("slack")
    tell(core, RESUMABLE, Enqueued("t/r1/0", 0, 0), ClientGone(RESUMABLE.listener))
    assert told_of(tell(core, call(RESUMABLE, listener=2, session=1, failed_attempts=2))) == [2]


def test_an_output_that_cannot_go_on_is_not_tried_again() -> None:
    """The state of a grammar is a function of the tokens: the next attempt would come to the same end."""
    core = core_of("slack")
    worker_key = dispatched(core, tell(core, RESUMABLE), 0)
    (handle,) = core.state.fleet.workers[worker_key].groups
    failure = SequenceFailed(handle, FailureReason.OUTPUT, "its format is too complex")
    told = tell(core, StepReported(worker_key, TokenColumns(), IDLE, failures=(failure,)))
    (finished,) = [action for action in told if isinstance(action, TellFinished)]
    assert finished.outcome.error == "its format is too complex"
    assert isinstance(finished.outcome.error, FinalError)
    assert not [action for action in told if isinstance(action, Enqueue)]
    assert not core.state.groups


def test_a_worker_that_refuses_a_fence_says_nothing_about_the_request() -> None:
    """A request outlives more refusals than it may have failures, and its client is told of none."""
    core, now = core_of("slack"), 1.0
    told = tell(core, RESUMABLE)
    for number in range(MAX_LOST + 1):
        command = sent(core, told, 0, now)
        assert command.spec.fence.attempt == number + 1
        refused = SequenceFailed(command.spec.handle, FailureReason.FENCED, "attempt 9 has been seen")
        report = StepReported(command.worker_key, TokenColumns(), IDLE, failures=(refused,))
        told = tell(core, report, now=now)
        now += LONGEST_REST_S
        told += tell(core, CHORES, now=now)
        assert set(told_of(told)) == {0}
        assert not [action for action in told if isinstance(action, TellFinished)]


def superseded(core: RouterCore) -> StepReported:
    """Return what a worker reports when the request's next session has reached it from elsewhere."""
    worker_key = dispatched(core, tell(core, RESUMABLE), 0)
    (handle,) = core.state.fleet.workers[worker_key].groups
    failure = SequenceFailed(handle, FailureReason.SUPERSEDED, "session 1 attempt 1 has been seen")
    return StepReported(worker_key, TokenColumns(), IDLE, failures=(failure,))


def test_a_session_that_went_on_elsewhere_ends_here() -> None:
    """Tried again, it would fail thrice, and its client would hear of that when it comes back."""
    core = core_of("slack")
    report = superseded(core)
    tell(core, ClientGone(RESUMABLE.listener))
    told = tell(core, report)
    assert not [action for action in told if isinstance(action, AttemptFailed | Enqueue)]
    assert not core.state.groups
    assert not core.state.live
    told = tell(core, call(RESUMABLE, listener=2, session=2))
    assert [action.entry.request_key for action in told if isinstance(action, Enqueue)] == ["t/r1/2"]


def test_a_client_of_an_older_session_is_told_that_it_is() -> None:
    core = core_of("slack")
    (reject,) = [action for action in tell(core, superseded(core)) if isinstance(action, Reject)]
    assert isinstance(reject.error, Superseded)


def test_a_client_that_has_come_back_is_served_on() -> None:
    core = core_of("slack")
    report = superseded(core)
    tell(core, ClientGone(RESUMABLE.listener), call(RESUMABLE, listener=2, session=2))
    told = tell(core, report)
    assert not [action for action in told if isinstance(action, AttemptFailed)]
    assert [action.entry.request_key for action in told if isinstance(action, Enqueue)] == ["t/r1/2"]
