"""A router that runs late refuses newcomers until it has caught up, and nobody who goes on."""

from __future__ import annotations

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.v1 import generation_pb2, inference_pb2
from router.errors import Overloaded
from router.links.metrics import NAMESPACE
from router.links.ticker import BUSY_LAG_S, MAX_COUNTED_LAG_S, SMOOTH_S, TICK_S, Ticker
from tests.router.conftest import RunningFleet, until

LATE_S = st.floats(0, 20)
ON_TIME_S = st.floats(0, 0.05)


def is_busy(ticker: Ticker) -> bool:
    try:
        ticker.refuse_if_busy()
    except Overloaded:
        return True
    return False


@given(st.lists(st.floats(0, BUSY_LAG_S), max_size=50))
def test_ticks_that_are_less_late_than_the_bound_refuse_nobody(late_s: list[float]) -> None:
    ticker = Ticker()
    for seconds in late_s:
        ticker.record(seconds)
        assert not is_busy(ticker)


@given(before_s=st.lists(LATE_S, max_size=20), late_s=st.floats(1.5 * BUSY_LAG_S, 20))
def test_a_loop_that_stays_late_is_busy_soon(before_s: list[float], late_s: float) -> None:
    ticker = Ticker()
    for seconds in before_s:
        ticker.record(seconds)
    lasted_s = 0.0
    while lasted_s < 2 * SMOOTH_S:
        ticker.record(late_s)
        lasted_s += TICK_S + min(late_s, MAX_COUNTED_LAG_S)
    assert is_busy(ticker)


@given(LATE_S)
def test_one_standstill_refuses_nobody(late_s: float) -> None:
    ticker = Ticker()
    ticker.record(late_s)
    assert not is_busy(ticker)


@given(before_s=st.lists(LATE_S, max_size=20), after_s=st.lists(ON_TIME_S, min_size=30, max_size=30))
def test_whatever_was_late_is_trusted_again_after_three_seconds(
    before_s: list[float], after_s: list[float]
) -> None:
    ticker = Ticker()
    for seconds in before_s:
        ticker.record(seconds)
        assert 0 <= ticker.lag_s <= MAX_COUNTED_LAG_S
    for entry in after_s:
        ticker.record(entry)
    assert not is_busy(ticker)


@pytest.mark.integration
async def test_a_late_router_refuses_newcomers_and_serves_the_others(fleet: RunningFleet) -> None:
    _, decode = await fleet.pair()
    request = inference_pb2.GenerateRequest(
        request_id="again",
        tokens=inference_pb2.TokenInput(token_ids=(5, 6, 7)),
        stop=generation_pb2.StopRules(max_tokens=4),
    )
    fleet.shell.ticker.lag_s = 1e9  # fades by a tenth each tick: for longer than this test may last
    refused = fleet.inference.Generate(request)
    assert await refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "this router is busy" in (await refused.details() or "")
    assert not decode.commands

    resume = inference_pb2.ResumeRequest(request=request, session=1)
    events = [response.event async for response in fleet.inference.Resume(resume)]
    assert events[-1].WhichOneof("event") == "finished"
    sample = fleet.shell.metrics.registry.get_sample_value
    assert (sample(f"{NAMESPACE}_loop_lag_seconds") or 0) > BUSY_LAG_S
    assert sample(f"{NAMESPACE}_requests_total", {"outcome": "Overloaded"}) == 1
    await until(fleet.nothing_is_held)
