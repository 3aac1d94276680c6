"""A call that finds no decode worker waits where one was connected a moment ago."""

from __future__ import annotations

import pytest

from router.core.core import RouterCore
from router.core.model.actions import (
    Action,
    AskGrants,
    Dequeue,
    Enqueue,
    Reject,
    RequestRefused,
    SendDecode,
    TellAccepted,
    TellChoiceFinished,
    TellFinished,
)
from router.core.model.events import (
    Arrived,
    CancelAsked,
    ClientGone,
    DrainAsked,
    Enqueued,
    Event,
    Granted,
    GrantsAnswered,
    SettleAnswered,
    StepReported,
    Timer,
    TimerFired,
    TimerKind,
    WorkerFacts,
    WorkerJoined,
    WorkerLoad,
    WorkerLost,
)
from router.core.model.session import MAX_LOST
from router.core.model.state import CoreConfig
from router.errors import Reason
from router.request import Received
from runtime.state.records import Settled
from scheduling.columns import TokenColumns
from scheduling.request import FinishReason, Slo
from tests.router.core_driver import ARRIVAL, COST, ONE, TWO, call, core_of, start, tell

CHORES = TimerFired(Timer(TimerKind.CHORES))
LOST_AT = 2.0
GRACE_S = CoreConfig("router-a").no_worker_grace_s
DIED = WorkerLost(ONE.key, "it died")


def back(facts: WorkerFacts = TWO) -> WorkerJoined:
    return WorkerJoined(facts, WorkerLoad(free_blocks=facts.num_blocks), COST)


def without_workers() -> RouterCore:
    """It had one until just now."""
    core = core_of("slack", ONE)
    tell(core, DIED, now=LOST_AT)
    return core


def reasons(actions: list[Action]) -> list[Reason]:
    return [action.error.reason for action in actions if isinstance(action, Reject)]


def enqueued(actions: list[Action]) -> list[str]:
    return [action.entry.request_key for action in actions if isinstance(action, Enqueue)]


def numbered(number: int) -> Arrived:
    return call(ARRIVAL, listener=number, request_id=f"r{number}")


def test_arrivals_proceed_in_order_once_a_worker_is_there() -> None:
    core = without_workers()
    assert not tell(core, numbered(2), numbered(1), now=LOST_AT + 1)[1:], (
        "nothing but the timer of the chores"
    )
    assert not enqueued(tell(core, CHORES, now=LOST_AT + 2))
    assert enqueued(tell(core, back(), now=LOST_AT + 3)) == ["t/r2/0", "t/r1/0"]
    told = tell(core, Enqueued("t/r2/0", 0, 0), now=LOST_AT + 3)
    assert [action.listener for action in told if isinstance(action, TellAccepted)] == [2]


def test_a_fleet_that_never_had_a_worker_refuses_at_once() -> None:
    core = RouterCore(CoreConfig("router-a"))
    assert reasons(tell(core, ARRIVAL)) == [Reason.NO_WORKER]


def test_nobody_waits_for_ever_and_later_ones_not_at_all() -> None:
    core = without_workers()
    tell(core, ARRIVAL, now=LOST_AT + 1)
    assert not reasons(tell(core, CHORES, now=LOST_AT + GRACE_S - 0.1))
    assert reasons(tell(core, CHORES, now=LOST_AT + GRACE_S)) == [Reason.NO_WORKER]
    assert not core.state.live
    assert reasons(tell(core, numbered(2), now=LOST_AT + GRACE_S)) == [Reason.NO_WORKER]
    assert not enqueued(tell(core, back(), now=LOST_AT + GRACE_S + 1))


def test_nobody_waits_beyond_its_promised_first_token() -> None:
    core = without_workers()
    hurried = call(ARRIVAL, slo=Slo(ttft_ms=500), received_at=LOST_AT)
    tell(core, hurried, now=LOST_AT)
    assert not reasons(tell(core, CHORES, now=LOST_AT + 0.4))
    assert reasons(tell(core, CHORES, now=LOST_AT + 0.5)) == [Reason.NO_WORKER]


def test_a_deadline_ends_the_wait_as_any_other() -> None:
    core = without_workers()
    tell(core, call(ARRIVAL, slo=Slo(deadline_ms=500), received_at=LOST_AT), now=LOST_AT)
    (sid,) = core.state.awaiting
    told = tell(core, TimerFired(Timer(TimerKind.DEADLINE, sid)), now=LOST_AT + 0.5)
    (finished,) = [action for action in told if isinstance(action, TellFinished)]
    assert finished.outcome.reasons == (FinishReason.DEADLINE,)
    assert not core.state.awaiting


@pytest.mark.parametrize("over", [CancelAsked("t", "r1"), ClientGone(ARRIVAL.listener)])
def test_whoever_leaves_meanwhile_is_not_taken_up(over: Event) -> None:
    core = without_workers()
    tell(core, ARRIVAL, over, now=LOST_AT)
    assert not core.state.awaiting
    assert not enqueued(tell(core, back(), now=LOST_AT + 1))


def test_who_was_on_its_way_into_the_queue_waits_too() -> None:
    core = core_of("slack", ONE)
    assert enqueued(tell(core, ARRIVAL)) == ["t/r1/0"]
    told = tell(core, DIED, Enqueued("t/r1/0", 3, 100), now=LOST_AT)
    assert [action.request_key for action in told if isinstance(action, Dequeue)] == ["t/r1/0"]
    assert not reasons(told)
    assert not core.state.groups
    assert enqueued(tell(core, back(), now=LOST_AT + 1)) == ["t/r1/0"]


def test_what_the_worker_that_comes_cannot_hold_is_said_then() -> None:
    core = without_workers()
    tell(core, ARRIVAL, now=LOST_AT)
    tiny = WorkerFacts("d3", "1", "decode", "d3:1", "fp", 4, 2, 8, 64)
    assert reasons(tell(core, back(tiny), now=LOST_AT + 1)) == [Reason.EXCEEDS_MEMORY]
    assert not core.state.live


def test_no_more_wait_than_the_queue_would_take() -> None:
    core = without_workers()
    capacity = core.state.config.queue_capacity
    told = [
        action for number in range(1, capacity + 2) for action in tell(core, numbered(number), now=LOST_AT)
    ]
    assert reasons(told) == [Reason.QUEUE_FULL]


def test_one_that_resumes_needs_no_free_place() -> None:
    core = without_workers()
    capacity = core.state.config.queue_capacity
    tell(core, *(numbered(number) for number in range(1, capacity + 1)), now=LOST_AT)
    assert reasons(tell(core, numbered(capacity + 1), now=LOST_AT)) == [Reason.QUEUE_FULL]
    resumed = call(ARRIVAL, session=1, listener=0, request_id="resumed", received=(Received(0, OUTPUT),))
    assert [action for action in tell(core, resumed, now=LOST_AT) if isinstance(action, TellAccepted)]
    assert "t/resumed/1" in enqueued(tell(core, back(), now=LOST_AT + 1))


def test_one_that_resumes_goes_on_waiting_and_keeps_its_count() -> None:
    core = without_workers()
    resumed = call(ARRIVAL, session=1, failed_attempts=MAX_LOST - 1)
    told = tell(core, resumed, now=LOST_AT)
    assert [action for action in told if isinstance(action, TellAccepted)]
    assert enqueued(tell(core, back(), now=LOST_AT + 1)) == ["t/r1/1"]
    assert core.state.groups["t/r1/1"].own_failures == MAX_LOST - 1


def test_a_worker_that_only_takes_nothing_new_is_waited_for_as_well() -> None:
    core = core_of("slack", ONE)
    assert not reasons(tell(core, DrainAsked(ONE.worker_id), ARRIVAL, now=1.5))
    assert core.state.awaiting
    assert enqueued(tell(core, back(), now=2.0)) == ["t/r1/0"]


def stream_without_workers(num_tokens: int) -> tuple[RouterCore, list[Action]]:
    """Return a core that a stream had so many tokens from when its worker was lost, and how that went on."""
    core = core_of("slack", ONE)
    key, handle = start(core, 1)
    if num_tokens:
        tokens = TokenColumns(
            [handle] * num_tokens, [0] * num_tokens, range(num_tokens), OUTPUT, [0] * num_tokens
        )
        tell(core, StepReported(key, tokens, WorkerLoad(running=1)), now=LOST_AT)
    tell(core, DIED, CHORES, now=LOST_AT)
    told = tell(core, CHORES, now=LOST_AT + GRACE_S - 0.1)
    assert not [action for action in told if isinstance(action, Reject | TellFinished)]
    return core, tell(core, CHORES, now=LOST_AT + GRACE_S + 0.1)


OUTPUT = (9, 8)


@pytest.mark.parametrize("num_tokens", [0, len(OUTPUT)])
def test_a_stream_without_workers_goes_on_at_another_router(num_tokens: int) -> None:
    """It has not failed: that would be the last word, although another router can serve it."""
    core, told = stream_without_workers(num_tokens)
    assert reasons(told) == [Reason.NO_WORKER]
    assert not [action for action in told if isinstance(action, TellChoiceFinished | TellFinished)]
    assert not core.state.live
    assert not core.state.retained
    assert not core.state.groups
    received = (Received(0, OUTPUT),) if num_tokens else ()
    other, resumed = core_of("slack", TWO), call(ARRIVAL, session=1, received=received)
    asked = tell(other, resumed, Enqueued("t/r1/1", 0, 0))
    assert [action for action in asked if isinstance(action, AskGrants)]
    tell(other, Granted("t/r1/1", TWO.key, TWO.key), GrantsAnswered(TWO.key))
    sent = tell(other, SettleAnswered("t/r1/1", TWO.key, TWO.key, Settled.OK))
    (command,) = [action for action in sent if isinstance(action, SendDecode)]
    assert command.spec.output_token_ids == OUTPUT[:num_tokens]


def test_a_stream_without_workers_that_comes_back_is_refused_at_once() -> None:
    """Its client has no other router, or none that serves: it learns in time that nothing can be done."""
    core, _ = stream_without_workers(2)
    resumed = call(ARRIVAL, session=1, received=(Received(0, OUTPUT),))
    assert reasons(tell(core, resumed, now=LOST_AT + GRACE_S + 0.2)) == [Reason.NO_WORKER]
    assert not core.state.live


def test_a_stream_without_workers_counts_as_refused_here() -> None:
    core, told = stream_without_workers(2)
    assert [action.error.reason for action in told if isinstance(action, RequestRefused)] == [
        Reason.NO_WORKER
    ]
    assert (core.state.counters.refused, core.state.counters.failed) == (1, 0)
