"""Two routers behind Envoy: each serves streams, and a stream that loses one continues at the other."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.compose.engine import bring_back, container, metrics_of, run
from tests.compose.streams import NUM_STREAMS, NUM_TOKENS, Doors, Received, struck, under
from tests.compose.test_compose import build_anew, replace

pytestmark = [pytest.mark.compose, pytest.mark.integration, pytest.mark.timeout(2400, func_only=True)]

DOORS = Doors("127.0.0.1:50050", ("http://127.0.0.1:8001/v1",))
BOTH_GATEWAYS = Doors(DOORS.grpc, (*DOORS.http, "http://127.0.0.1:8000/v1"))
ROUTERS = ("router", "router-2")


def kill_a_router() -> None:
    run("docker", "kill", container("router"))


def pause_a_router() -> None:
    """Long enough for Envoy to find out that it does not answer."""
    run("docker", "pause", container("router-2"))
    run("sleep", "20")
    run("docker", "unpause", container("router-2"))


def replace_both_routers() -> None:
    build_anew("router")
    for router in ROUTERS:
        replace(router)


def kill_a_gateway() -> None:
    run("docker", "kill", container("gateway-2"))


def mend() -> None:
    bring_back("--profile", "two-routers")


def num_tokens_of(router: str) -> float:
    metrics = metrics_of(router)
    (relayed,) = re.findall(r"^baton_relayed_tokens_total (\S+)$", metrics, flags=re.MULTILINE)
    return float(relayed)


STRIKES = {kill_a_router: 1, pause_a_router: 1, replace_both_routers: 0}
"""How many streams each makes the SDK resume: of replaced routers, all may end within the grace."""


def at_least(num_resumed: int) -> Callable[[Received], bool]:
    return lambda received: received.num_resumed >= num_resumed


async def test_streams_are_spread_and_continue_at_the_other_router(two_routers: None) -> None:
    # Envoy does not count streams that wait for its first connection to a router: these are spread by chance.
    undisturbed = await under(DOORS, None)
    before = [num_tokens_of(router) for router in ROUTERS]
    assert (await under(DOORS, None)).is_same(undisturbed)
    relayed = [num_tokens_of(router) - was for router, was in zip(ROUTERS, before, strict=True)]
    assert sum(relayed) == 2 * NUM_STREAMS * NUM_TOKENS
    assert min(relayed) >= sum(relayed) / 4, "streams of one connection go to both routers"
    for strike, num_resumed in STRIKES.items():
        received = await struck(DOORS, strike, mend, undisturbed, at_least(num_resumed))
        assert received.num_sent_again == 0, strike.__name__
    await struck(
        BOTH_GATEWAYS, kill_a_gateway, mend, undisturbed, lambda received: received.num_sent_again > 0
    )
