"""Several calls of one request: each hears all of it, and the last one that leaves ends it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import grpc.aio
import pytest

from baton import AsyncClient, Sampling, Slo, Stop
from baton.errors import Superseded
from baton.v1 import generation_pb2, inference_pb2
from baton.wire.convert import request_to_pb
from baton.worker.v1 import worker_pb2
from router.core.model.session import MAX_CALLS
from tests.router.calls import PROMPT, events_of, expected, reason_of, request, tokens_of
from tests.router.conftest import RunningFleet, until
from tests.router.scripted_worker import ScriptedWorker

pytestmark = pytest.mark.integration


def num_started(decode: ScriptedWorker) -> int:
    """How often the request was computed."""
    return len([command for command in decode.commands if command.WhichOneof("command") == "receive"])


def num_listening(fleet: RunningFleet) -> int:
    return len(fleet.shell.core.state.by_listener)


async def rest_of(call: grpc.aio.UnaryStreamCall) -> list[inference_pb2.GenerationEvent]:
    """Return the events that come after the first reads of a call."""
    events: list[inference_pb2.GenerationEvent] = []
    while (response := cast("Any", await call.read())) is not grpc.aio.EOF:
        events.append(response.event)
    return events


async def test_same_request_again_attaches_and_all_calls_hear_everything(fleet: RunningFleet) -> None:
    _, decode = await fleet.pair(step_s=0.01)
    first = asyncio.create_task(events_of(fleet.inference.Generate(request(20, "twice"))))
    await until(lambda: bool(decode.running))
    second = await events_of(fleet.inference.Generate(request(20, "twice")))
    assert tokens_of(await first) == tokens_of(second) == expected(20)
    later = await events_of(fleet.inference.Generate(request(20, "twice")))
    assert tokens_of(later) == expected(20)
    once = inference_pb2.GenerateOnceRequest(request=request(20, "twice"))
    assert list((await fleet.inference.GenerateOnce(once)).choices[0].token_ids) == expected(20)
    assert num_started(decode) == 1


async def test_choices_of_all_calls_end_alike(fleet: RunningFleet) -> None:
    _, decode = await fleet.pair(step_s=0.01)
    asked = request(20, "alike", sampling=generation_pb2.SamplingParams(n=3, logprobs=1))
    first = asyncio.create_task(events_of(fleet.inference.Generate(asked)))
    await until(lambda: bool(decode.running))
    second = await events_of(fleet.inference.Generate(asked))
    for events in (await first, second):
        assert [tokens_of(events, choice) for choice in range(3)] == [
            expected(20, choice) for choice in range(3)
        ]
        ended = [
            event.choice_finished.choice for event in events if event.WhichOneof("event") == "choice_finished"
        ]
        assert sorted(ended) == [0, 1, 2]


async def test_two_clients_with_one_id_do_not_evict_each_other(fleet: RunningFleet) -> None:
    _, decode = await fleet.pair(step_s=0.01)

    async def complete() -> tuple[tuple[int, ...], int]:
        async with AsyncClient([fleet.address]) as client:
            stream = client.generate(
                PROMPT, sampling=Sampling(seed=1), stop=Stop(max_tokens=60), request_id="shared"
            )
            completion = await stream.collect()
            return completion.choices[0].token_ids, stream.resumes + stream.retries

    answers = await asyncio.gather(complete(), complete())
    assert list(answers) == [(tuple(expected(60)), 0)] * 2
    assert num_started(decode) == 1


async def test_a_request_ends_with_the_last_call_that_hears_it(fleet: RunningFleet) -> None:
    _, decode = await fleet.pair(step_s=0.01, num_blocks=100_000)
    calls = [fleet.inference.Generate(request(2000, "left")) for _ in range(2)]
    await asyncio.gather(*(call.read() for call in calls))
    await until(lambda: num_listening(fleet) == 2)
    calls[1].cancel()
    await until(lambda: num_listening(fleet) == 1)
    assert fleet.shell.core.is_running("", "left")
    for _ in range(3):
        await calls[0].read()
    calls[0].cancel()
    await until(lambda: not decode.running and not fleet.shell.core.is_running("", "left"))
    await until(fleet.nothing_is_held)


async def test_the_grace_of_the_call_that_left_last_counts(fleet: RunningFleet) -> None:
    _, decode = await fleet.pair(step_s=0.01, num_blocks=100_000)
    patient = fleet.inference.Generate(request(2000, "graced", resume_grace_ms=60_000))
    hasty = fleet.inference.Generate(request(2000, "graced"))
    await asyncio.gather(patient.read(), hasty.read())
    await until(lambda: num_listening(fleet) == 2)
    patient.cancel()
    await until(lambda: num_listening(fleet) == 1)
    assert fleet.shell.core.is_running("", "graced")
    hasty.cancel()
    await until(lambda: not decode.running)


async def test_a_call_that_does_not_read_ends_and_the_other_is_served(fleet: RunningFleet) -> None:
    await fleet.pair(num_blocks=100_000)
    fleet.shell.max_pending_tokens = 64
    narrow = (("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0))
    async with grpc.aio.insecure_channel(fleet.address, options=narrow) as channel:
        method = "/baton.v1.InferenceService/Generate"
        start = channel.unary_stream(
            method,
            request_serializer=inference_pb2.GenerateRequest.SerializeToString,
            response_deserializer=inference_pb2.GenerateResponse.FromString,
        )
        asked = request(4000, "half", sampling=generation_pb2.SamplingParams(n=2, logprobs=1))
        silent = start(asked)
        await silent.read()
        fleet.shell.max_pending_tokens = 1 << 30
        events = await events_of(fleet.inference.Generate(asked))
        assert tokens_of(events) == expected(4000)
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await rest_of(silent)
        assert reason_of(late.value) == "READER_TOO_SLOW"
    await until(fleet.nothing_is_held)


async def test_a_resumed_call_ends_those_of_earlier_sessions_for_good(fleet: RunningFleet) -> None:
    _, decode = await fleet.pair(step_s=0.01)
    stale = fleet.inference.Generate(request(200, "moved"))
    await until(lambda: bool(decode.running))
    tokens = inference_pb2.ReceivedTokens(choice=0)
    resume = inference_pb2.ResumeRequest(request=request(200, "moved"), session=1, received=[tokens])
    resumed = [asyncio.create_task(events_of(fleet.inference.Resume(resume))) for _ in range(2)]
    with pytest.raises(grpc.aio.AioRpcError) as superseded:
        await events_of(stale)
    assert superseded.value.code() is grpc.StatusCode.ABORTED
    assert reason_of(superseded.value) == "SUPERSEDED"
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await events_of(fleet.inference.Generate(request(200, "moved")))
    assert reason_of(refused.value) == "SUPERSEDED"
    assert [tokens_of(await entry) for entry in resumed] == [expected(200)] * 2
    assert num_started(decode) == 1


async def test_a_client_whose_call_was_superseded_does_not_come_back(fleet: RunningFleet) -> None:
    _, decode = await fleet.pair(step_s=0.01)
    sampling, stop = Sampling(seed=1), Stop(max_tokens=400)
    async with AsyncClient([fleet.address]) as client:
        stream = client.generate(PROMPT, sampling=sampling, stop=stop, request_id="taken-over")
        reading = asyncio.create_task(stream.collect())
        await until(lambda: bool(decode.running))
        same = request_to_pb(PROMPT, sampling, stop, Slo(), request_id="taken-over")
        resume = inference_pb2.ResumeRequest(request=same, session=1)
        resumed = asyncio.create_task(events_of(fleet.inference.Resume(resume)))
        with pytest.raises(Superseded) as caught:
            await reading
        assert caught.value.reason == "SUPERSEDED"
        assert (stream.resumes, stream.retries) == (0, 0)
        assert tokens_of(await resumed) == expected(400)


@pytest.mark.parametrize("num_received", [0, 20])
async def test_a_new_client_takes_back_the_request_of_one_that_died(
    fleet: RunningFleet, num_received: int
) -> None:
    await fleet.pair(step_s=0.01)
    sampling, stop = Sampling(seed=1), Stop(max_tokens=60)
    same = request_to_pb(PROMPT, sampling, stop, Slo(), request_id="orphan")
    tokens = inference_pb2.ReceivedTokens(choice=0, token_ids=expected(60)[:num_received])
    dying = fleet.inference.Resume(inference_pb2.ResumeRequest(request=same, session=1, received=[tokens]))
    await dying.read()
    dying.cancel()
    async with AsyncClient([fleet.address]) as client:
        found = await client.complete(PROMPT, sampling=sampling, stop=stop, request_id="orphan")
    assert list(found.choices[0].token_ids) == expected(60)


async def test_a_client_who_came_after_a_resumption_elsewhere_is_served(fleet: RunningFleet) -> None:
    """This router accepts it in session 0, since it knows no other, until a worker refuses the attempt."""
    prefill, decode = await fleet.pair()
    prefill.go.clear()
    async with AsyncClient([fleet.address]) as client:
        stream = client.generate(
            PROMPT, sampling=Sampling(seed=1), stop=Stop(max_tokens=20), request_id="again"
        )
        reading = asyncio.create_task(stream.collect())
        await until(lambda: num_started(decode) == 1)
        decode.fail(
            decode.commands[-1].receive.sequence.handle,
            reason=worker_pb2.FAILURE_REASON_SUPERSEDED,
            session=3,
            session_age_seconds=3600.0,
        )
        await until(lambda: num_started(decode) == 2)
        prefill.go.set()
        assert list((await reading).choices[0].token_ids) == expected(20)
    starts = [command.receive.sequence for command in decode.commands if command.HasField("receive")]
    assert [start.fence.session for start in starts] == [0, 4]
    assert starts[0].session_age_seconds == 0.0
    assert 0.0 < starts[1].session_age_seconds < 3600.0


async def test_more_calls_than_may_hear_a_request_end_the_oldest(fleet: RunningFleet) -> None:
    _, decode = await fleet.pair(step_s=0.01)
    calls = []
    for _ in range(MAX_CALLS + 1):
        calls.append(fleet.inference.Generate(request(200, "many")))
        await calls[-1].read()
    with pytest.raises(grpc.aio.AioRpcError) as oldest:
        await rest_of(calls[0])
    assert reason_of(oldest.value) == "SUPERSEDED"
    rest = await asyncio.gather(*map(rest_of, calls[1:]))
    assert len(rest) == MAX_CALLS
    assert all(events[-1].WhichOneof("event") == "finished" for events in rest)
    assert num_started(decode) == 1
