"""A request id that is used again once its router has forgotten it is a new request at the workers too."""

from __future__ import annotations

from typing import NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from router.core.arrive import find
from router.core.model.actions import Enqueue, Reject
from router.core.model.events import ClientGone
from router.request import Received
from scheduling.request import FinishReason
from tests.router.core.test_several_routers import NUM_ROUTERS, Client, Fleet, fleet_of
from tests.router.core_driver import ARRIVAL, call, core_of, tell
from tests.router.core_world import PROMPT
from tests.router.scripted_worker import token_at

FORGOTTEN_S = 63.0
RATES = (1.0,) * (NUM_ROUTERS + 1)
USES = 5
MOMENT_S = 0.01


def attempts_of(fleet: Fleet, client: Client) -> int:
    session = fleet.routers[client.router].core.state.by_listener[client.listener]
    return session.attempts


def serve(fleet: Fleet, client: Client) -> None:
    """The worker generates all that the client waits for."""
    router = fleet.routers[client.router]
    (group,) = router.core.state.by_listener[client.listener].groups
    (worker,) = router.workers.values()
    router.report(worker, [(group.handle, 0, 0, token_at(PROMPT, 0, 0), int(FinishReason.EOS))])
    router.attend()
    fleet.settle()
    fleet.free()
    assert router.heard[client.listener].ended == {0: FinishReason.EOS}


def rest(fleet: Fleet, seconds: float) -> None:
    """Time passes, and what routers gave up meanwhile is over at the worker before the next call comes."""
    fleet.wait(seconds)
    fleet.settle()
    fleet.free()
    fleet.wait(MOMENT_S)


def test_an_id_is_served_in_one_attempt_however_often_it_comes() -> None:
    with fleet_of(RATES) as fleet:
        for _ in range(USES):
            client = fleet.call(0)
            fleet.settle()
            assert attempts_of(fleet, client) == 1
            serve(fleet, client)
            fleet.wait(FORGOTTEN_S)
            fleet.wait(1.0)
            assert find(fleet.routers[0].core.state, "t", "r1") is None


def test_a_router_started_again_serves_the_same_ids() -> None:
    with fleet_of(RATES) as fleet:
        for _ in range(USES):
            client = fleet.call(0)
            fleet.settle()
            assert attempts_of(fleet, client) == 1
            serve(fleet, client)
            fleet.restart(0)


class Use(NamedTuple):
    """One use of the id, and what happens to it and after it."""

    number: int
    """The router that is called."""
    dies: bool
    """It dies before a worker has heard of the call, which is resumed."""
    num_resumes: int
    restarts: bool
    """The router that was called is started again after the use."""
    is_soon: bool
    """The next use comes while routers know of this one."""


USE = st.builds(Use, st.integers(0, 1), st.booleans(), st.integers(0, 3), st.booleans(), st.booleans())


@given(st.lists(USE, min_size=1, max_size=6))
@example([Use(0, False, 2, False, True), Use(0, True, 0, False, False)]).via("a worker knows session 2")
@example([Use(1, False, 2, False, True), Use(0, True, 0, False, False)]).via("a router knows session 2")
@example(
    [
        Use(0, False, 2, False, True),
        Use(1, False, 1, False, True),
        Use(0, False, 0, True, True),
        Use(1, False, 1, False, False),
    ]
).via("a call joins session 3, and is resumed elsewhere")
def test_an_id_comes_again_after_it_was_resumed(uses: list[Use]) -> None:
    """Workers, and routers for a minute, remember the later session of an earlier use.

    The call that came last is served anyway, also if it is a resumption with a lower session.
    """
    with fleet_of(RATES) as fleet:
        for number, dies, num_resumes, restarts, is_soon in uses:
            client = fleet.call(number)
            if dies:
                fleet.restart(number)
                rest(fleet, 1.0)
                fleet.resume(client, 1 - number, is_noticed=False)
            fleet.settle()
            for _ in range(num_resumes):
                if fleet.is_over(client):
                    break
                rest(fleet, 1.0)
                fleet.resume(client, 1 - client.router, is_noticed=True)
                fleet.settle()
            if not fleet.is_over(client):  # else a router that knows the request has replayed it
                assert fleet.served_in(client) is not None
                serve(fleet, client)
            assert not client.is_lost
            rest(fleet, 1.0 if is_soon else FORGOTTEN_S)
            rest(fleet, 1.0)
            if restarts:
                fleet.restart(number)


@pytest.mark.parametrize("is_heard", [False, True])
def test_a_use_may_resume_in_the_session_of_an_earlier_one(is_heard: bool) -> None:
    """It has other tokens. Only beside a caller of the same session it is not known which came later."""
    core = core_of("slack")
    tell(core, call(ARRIVAL, session=1, received=(Received(0, (7, 8)),)))
    if not is_heard:
        tell(core, ClientGone(ARRIVAL.listener))
    actions = tell(core, call(ARRIVAL, listener=2, session=1))
    assert any(isinstance(action, Reject) for action in actions) is is_heard
    assert any(isinstance(action, Enqueue) for action in actions) is not is_heard
