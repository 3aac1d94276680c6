"""Requests that are cancelled, late or left by their clients end at once, in whatever phase, over gRPC."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest

from baton.v1 import generation_pb2, inference_pb2
from router.intake.helpers.tokenizer_pool import TokenizerPool
from runtime.state.store import Store
from tests.router.calls import events_of, expected, request, tokens_of
from tests.router.conftest import RunningFleet, until

pytestmark = pytest.mark.integration


async def test_a_request_cancelled_while_it_is_tokenised_never_runs(
    fleet: RunningFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = await fleet.pair()
    tokenising, go_on, encode = asyncio.Event(), asyncio.Event(), TokenizerPool.encode

    async def slowly(pool: TokenizerPool, text: str, **options: Any) -> list[int]:
        tokenising.set()
        await go_on.wait()
        return await encode(pool, text, **options)

    monkeypatch.setattr(TokenizerPool, "encode", slowly)
    long = inference_pb2.GenerateRequest(request_id="slow", text="w5 w6 w7")
    events = asyncio.create_task(events_of(fleet.inference.Generate(long)))
    await tokenising.wait()
    cancelled = await fleet.inference.Cancel(inference_pb2.CancelRequest(request_id="slow"))
    assert cancelled.cancelled
    again = await fleet.inference.Cancel(inference_pb2.CancelRequest(request_id="other"))
    assert not again.cancelled
    go_on.set()
    [ended] = [
        event.choice_finished for event in await events if event.WhichOneof("event") == "choice_finished"
    ]
    assert ended.reason == generation_pb2.FINISH_REASON_CANCELLED
    assert not prefill.commands
    assert not decode.commands
    await until(fleet.nothing_is_held)


async def test_a_deadline_or_a_broken_call_ends_the_wait_for_the_tokenizer(
    fleet: RunningFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = await fleet.pair()
    tokenising, ended = asyncio.Event(), asyncio.Event()

    async def without_end(_pool: TokenizerPool, _text: str, **_options: Any) -> list[int]:
        tokenising.set()
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    monkeypatch.setattr(TokenizerPool, "encode", without_end)
    slo = generation_pb2.Slo(deadline_ms=50)
    with pytest.raises(grpc.aio.AioRpcError) as late:
        await events_of(fleet.inference.Generate(inference_pb2.GenerateRequest(text="w5", slo=slo)))
    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert ended.is_set()
    tokenising.clear()
    ended.clear()
    call = fleet.inference.Generate(inference_pb2.GenerateRequest(text="w5"))
    await tokenising.wait()
    call.cancel()
    await ended.wait()
    assert not prefill.commands
    assert not decode.commands
    await until(fleet.nothing_is_held)


async def test_cancel_frees_every_worker(fleet: RunningFleet) -> None:
    _, decode = await fleet.pair(step_s=0.01)
    call = fleet.inference.Generate(request(200, "to-cancel"))
    await until(lambda: bool(decode.running))
    answer = await fleet.inference.Cancel(inference_pb2.CancelRequest(request_id="to-cancel"))
    assert answer.cancelled
    events = await events_of(call)
    assert events[-2].choice_finished.reason == generation_pb2.FINISH_REASON_CANCELLED
    await until(lambda: not decode.running)
    await until(fleet.nothing_is_held)
    again = await fleet.inference.Cancel(inference_pb2.CancelRequest(request_id="to-cancel"))
    assert not again.cancelled


async def test_a_cancel_at_another_router_ends_a_generation(fleet: RunningFleet, store: Store) -> None:
    _, decode = await fleet.pair(step_s=0.01)
    call = fleet.inference.Generate(request(200, "elsewhere"))
    await until(lambda: bool(decode.running))
    await store.publish_cancel("router-b", "", "elsewhere")
    events = await events_of(call)
    assert events[-2].choice_finished.reason == generation_pb2.FINISH_REASON_CANCELLED
    await until(fleet.nothing_is_held)


async def test_cancel_before_the_first_token_stops_the_prefill(fleet: RunningFleet) -> None:
    prefill, _ = await fleet.pair()
    prefill.go.clear()
    call = fleet.inference.Generate(request(20, "early"))
    await until(lambda: any(c.WhichOneof("command") == "prefill" for c in prefill.commands))
    await fleet.inference.Cancel(inference_pb2.CancelRequest(request_id="early"))
    assert tokens_of(await events_of(call)) == []
    await until(lambda: any(c.WhichOneof("command") == "cancel" for c in prefill.commands))
    await until(fleet.nothing_is_held)


async def test_a_deadline_ends_the_generation_and_keeps_its_tokens(fleet: RunningFleet) -> None:
    _, decode = await fleet.pair(step_s=0.02, num_blocks=100_000)
    tokens: list[int] = []
    deadline_ms = 150
    while not tokens:  # it passes before the first token where this process or Redis stands still
        deadline_ms *= 2
        slo = generation_pb2.Slo(deadline_ms=deadline_ms)
        try:
            events = await events_of(fleet.inference.Generate(request(2000, slo=slo)))
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
            continue
        assert events[-2].choice_finished.reason == generation_pb2.FINISH_REASON_DEADLINE
        tokens = tokens_of(events)
    assert len(tokens) < 2000
    assert tokens == expected(len(tokens))
    await until(lambda: not decode.running)
    await until(fleet.nothing_is_held)


async def test_client_that_hangs_up_frees_its_work(fleet: RunningFleet) -> None:
    _, decode = await fleet.pair(step_s=0.01)
    call = fleet.inference.Generate(request(200))
    await until(lambda: bool(decode.running))
    call.cancel()
    await until(lambda: not decode.running)
    await until(fleet.nothing_is_held)
