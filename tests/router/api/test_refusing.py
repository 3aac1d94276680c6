"""Promises and refusals have the right codes and details over real gRPC."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import grpc.aio
import pytest
from structlog.testing import capture_logs

from baton.v1 import errors_pb2, generation_pb2, inference_pb2
from scheduling.admission.admission import ITL_MARGIN
from tests.router.calls import details_of, events_of, expected, request, tokens_of
from tests.router.conftest import RunningFleet, until

pytestmark = pytest.mark.integration


@contextlib.asynccontextmanager
async def kept_busy(fleet: RunningFleet) -> AsyncIterator[None]:
    """One stream runs meanwhile. An idle fleet would try what it expects to miss."""
    stream = fleet.inference.Generate(request(500))
    async for response in stream:
        if response.event.WhichOneof("event") == "tokens":
            break
    yield
    stream.cancel()


async def accepted_at_last(
    fleet: RunningFleet, refusal: errors_pb2.SloRefusal
) -> list[inference_pb2.GenerationEvent]:
    """The events of a request that asks for what it is told could be promised.

    On a machine that gets busier meanwhile that is refused too, with what could be promised by then.
    """
    while True:
        slo = generation_pb2.Slo(ttft_ms=refusal.attainable_ttft_ms)
        try:
            return await events_of(fleet.inference.Generate(request(5, slo=slo)))
        except grpc.aio.AioRpcError as error:
            told = details_of(error)["baton.v1.SloRefusal"]
            assert told.attainable_ttft_ms > slo.ttft_ms
            refusal = told


async def test_slo_that_cannot_be_met_is_refused_at_once_with_what_could(fleet: RunningFleet) -> None:
    await fleet.pair(step_s=0.05)
    slo = generation_pb2.Slo(ttft_ms=55)
    async with kept_busy(fleet):
        with pytest.raises(grpc.aio.AioRpcError) as error, capture_logs() as logs:
            await events_of(fleet.inference.Generate(request(5, slo=slo, request_id="mine")))
    [line] = [entry for entry in logs if entry["event"] == "refused"]
    assert (line["request"], line["error"], line["reason"]) == ("/mine/0", "Refused", error.value.details())
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    details = details_of(error.value)
    refusal = details["baton.v1.SloRefusal"]
    assert refusal.attainable_ttft_ms > 55
    assert details["google.rpc.RetryInfo"].retry_delay.ToMilliseconds() >= 100
    await until(fleet.nothing_is_held)
    assert tokens_of(await accepted_at_last(fleet, refusal)) == expected(5)


@pytest.mark.parametrize("field", ["ttft_ms", "tpot_ms", "itl_ms"])
async def test_an_impossible_slo_is_wrong_even_without_trusted_costs(fleet: RunningFleet, field: str) -> None:
    await fleet.pair(step_s=0.05)
    slo = generation_pb2.Slo(**{field: 1})  # type: ignore[arg-type]  # one of its fields
    for _ in range(3):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await events_of(fleet.inference.Generate(request(5, slo=slo)))
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        details = details_of(error.value)
        assert details["google.rpc.ErrorInfo"].reason == "SLO_IMPOSSIBLE"
        assert details["google.rpc.BadRequest"].field_violations[0].field == f"slo.{field}"
        assert "google.rpc.RetryInfo" not in details
    slo.allow_at_risk = True
    events = await events_of(fleet.inference.Generate(request(5, slo=slo)))
    assert tokens_of(events) == expected(5)
    assert events[0].accepted.promise.at_risk


async def test_an_impossible_gap_is_refused_and_a_promised_one_judged(
    fleet: RunningFleet,
) -> None:
    await fleet.pair(step_s=0.05)
    async with kept_busy(fleet):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await events_of(fleet.inference.Generate(request(5, slo=generation_pb2.Slo(itl_ms=52))))
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    refusal = details_of(error.value)["baton.v1.SloRefusal"]
    assert refusal.attainable_itl_ms * ITL_MARGIN >= refusal.predicted_itl_ms >= 50
    assert f"itl_ms of {refusal.attainable_itl_ms}" in str(error.value.details())
    for itl_ms in (refusal.attainable_itl_ms, 60_000):
        slo = generation_pb2.Slo(itl_ms=itl_ms)
        finished = (await events_of(fleet.inference.Generate(request(5, slo=slo))))[-1].finished
        assert finished.promise.itl_ms == itl_ms
        assert finished.promise.predicted_itl_ms == pytest.approx(refusal.predicted_itl_ms)
        assert finished.delivery.itl_kept == (finished.delivery.max_gap_ms <= itl_ms)
    assert finished.delivery.itl_kept
    # Of what nobody asked for nothing is broken.
    assert finished.delivery.ttft_kept
    assert finished.delivery.tpot_kept


async def test_quote_says_what_admission_would(fleet: RunningFleet) -> None:
    await fleet.pair(step_s=0.05)
    slo = generation_pb2.Slo(ttft_ms=55)
    async with kept_busy(fleet):
        quoted = await fleet.inference.Quote(inference_pb2.QuoteRequest(request=request(5, slo=slo)))
        assert quoted.verdict == inference_pb2.VERDICT_REFUSED
        assert quoted.retry_after_ms >= 100
        slo.allow_at_risk = True
        quoted = await fleet.inference.Quote(inference_pb2.QuoteRequest(request=request(5, slo=slo)))
        assert quoted.verdict == inference_pb2.VERDICT_AT_RISK
    await until(fleet.nothing_is_held)
    quoted = await fleet.inference.Quote(inference_pb2.QuoteRequest(request=request(5)))
    assert quoted.verdict == inference_pb2.VERDICT_ACCEPTED
    assert quoted.promise.predicted_ttft_ms > 0
    assert await fleet.nothing_is_held()


async def test_without_workers_a_request_is_refused_at_once(fleet: RunningFleet) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await events_of(fleet.inference.Generate(request(5)))
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_request_that_no_worker_can_ever_hold_is_refused(fleet: RunningFleet) -> None:
    await fleet.pair(num_blocks=4)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await events_of(fleet.inference.Generate(request(50)))
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert details_of(error.value)["google.rpc.BadRequest"].field_violations[0].field == "stop.max_tokens"
    assert tokens_of(await events_of(fleet.inference.Generate(request(5)))) == expected(5)
