"""A request id that is used again once its router has forgotten it is a new request at the workers too."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from router.core.arrive import find
from scheduling.request import FinishReason
from tests.router.core.test_several_routers import NUM_ROUTERS, Client, Fleet, fleet_of
from tests.router.core_world import PROMPT
from tests.router.scripted_worker import token_at

FORGOTTEN_S = 63.0
RATES = (1.0,) * (NUM_ROUTERS + 1)
USES = 5


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


USE = st.tuples(st.integers(0, 1), st.integers(0, 3), st.booleans(), st.booleans())


@given(st.lists(USE, min_size=1, max_size=6))
def test_an_id_comes_again_after_it_was_resumed(uses: list[tuple[int, int, bool, bool]]) -> None:
    """Workers, and routers for a minute, remember the later session of an earlier use.

    The call that came last is served anyway, also if it is a resumption with a lower session.
    """
    with fleet_of(RATES) as fleet:
        for number, num_resumes, restarts, is_soon in uses:
            client = fleet.call(number)
            fleet.settle()
            for _ in range(num_resumes):
                if fleet.is_over(client):
                    break
                fleet.wait(1.0)
                fleet.resume(client, 1 - client.router, is_noticed=True)
                fleet.settle()
            if not fleet.is_over(client):  # else a router that knows the request has replayed it
                assert fleet.served_in(client) is not None
                serve(fleet, client)
            assert not client.is_lost
            fleet.free()
            fleet.wait(1.0 if is_soon else FORGOTTEN_S)
            fleet.wait(1.0)
            if restarts:
                fleet.restart(number)
