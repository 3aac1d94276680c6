"""A request whose attempts fail ends after three, whichever routers it goes through."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.actions import Action, AskGrants, AttemptFailed, SendDecode, Settle, TellFinished, TellRetrying
from router.core import RouterCore
from router.events import Arrived, ClientGone, Enqueued, Granted, SettleAnswered, WorkerLost
from scheduling.request import FinishReason
from state.records import Settled
from tests.router.core_driver import ARRIVAL, core_of, tell
from tests.router.test_leaving import RESUMABLE


def dispatched(core: RouterCore, told: list[Action], session: int) -> str:
    """The worker that gets the request, whose place in the queue was just asked for."""
    key = f"t/r1/{session}"
    asks = [one for one in told + tell(core, Enqueued(key, 0, 0)) if isinstance(one, AskGrants)]
    (settle,) = [
        one for one in tell(core, Granted(key, *[asks[0].worker.key] * 2)) if isinstance(one, Settle)
    ]
    settled = SettleAnswered(key, settle.prefill_key, settle.decoders[0].key, Settled.OK)
    (sent,) = [one for one in tell(core, settled) if isinstance(one, SendDecode)]
    return sent.worker_key


def killed(core: RouterCore, event: Arrived) -> list[Action]:
    """What comes of it when the worker that gets it dies."""
    worker_key = dispatched(core, tell(core, event), event.session)
    return tell(core, WorkerLost(worker_key, "it died"))


def told_of(actions: list[Action]) -> list[int]:
    return [one.failed_attempts for one in actions if isinstance(one, TellRetrying)]


def test_the_count_goes_on_from_router_to_router() -> None:
    counts, actions = [0], list[Action]()
    for session in range(3):
        event = replace(RESUMABLE, session=session, failed_attempts=counts[-1])
        actions = killed(core_of("slack"), event)
        counts += told_of(actions)
    assert counts == [0, 1, 2]
    assert [one.final for one in actions if isinstance(one, AttemptFailed)] == [True]
    (finished,) = [one for one in actions if isinstance(one, TellFinished)]
    assert finished.outcome.reasons == (FinishReason.FAILED,)
    assert "3 attempts failed" in finished.outcome.error


@pytest.mark.parametrize("count", [2, 3, 2**32 - 1])
def test_one_attempt_is_left_whatever_a_client_says(count: int) -> None:
    actions = killed(core_of("slack"), replace(RESUMABLE, session=1, failed_attempts=count))
    assert [one.final for one in actions if isinstance(one, AttemptFailed)] == [True]


def test_who_comes_back_hears_what_failed_meanwhile() -> None:
    core = core_of("slack")
    worker_key = dispatched(core, tell(core, RESUMABLE), 0)
    tell(core, ClientGone(RESUMABLE.listener))
    assert told_of(tell(core, WorkerLost(worker_key, "it died"))) == []
    assert told_of(tell(core, replace(RESUMABLE, listener=2, session=1))) == [1]


def test_who_cannot_resume_is_not_told() -> None:
    assert told_of(killed(core_of("slack"), ARRIVAL)) == []
