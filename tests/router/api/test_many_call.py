"""Many generations over one call: each has what it would have had on a call of its own, over real gRPC."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status  # type: ignore[import-untyped]  # ships no annotations

from baton.security.auth_file import add_key, new_api_key
from baton.v1 import generation_pb2, inference_pb2, inference_pb2_grpc
from model_output.formats import Delta
from router.auth.auth import Auth
from router.intake.helpers.tokenizer_pool import TokenizerPool
from router.intake.model_facts import ModelFacts
from router.outputs import OutputReader, Reading
from tests.router.api.served import served
from tests.router.calls import events_of, expected, finished_of, reason_of, request, tokens_of
from tests.router.conftest import RunningFleet, until
from tests.router.many_calls import Heard, ManyClient

pytestmark = pytest.mark.integration

NARROW = (("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0))
"""Options of a connection whose window is soon full."""
THOUSANDS = 2000
"""More calls than a connection carries at once."""


def is_status(event: Heard) -> bool:
    return isinstance(event, status_pb2.Status)


def reason(status: Heard) -> str:
    assert isinstance(status, status_pb2.Status), status
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return info.reason


def kinds(events: list[inference_pb2.GenerationEvent]) -> list[str | None]:
    """The kinds of events but for waiting, those of consecutive tokens once."""
    found = [kind for event in events if (kind := event.WhichOneof("event")) != "queued"]
    return [kind for place, kind in enumerate(found) if kind != "tokens" or found[place - 1] != "tokens"]


async def test_each_generation_hears_what_a_call_of_its_own_does(fleet: RunningFleet) -> None:
    await fleet.pair(step_s=0.005)
    alone = await events_of(fleet.inference.Generate(request(20, "alone")))
    many = ManyClient(fleet.inference)
    for place in range(8):
        await many.send(place, generate=request(20, f"r{place}"))
    await many.done()
    for place in range(8):
        events = many.events(place)
        assert tokens_of(events) == expected(20)
        assert kinds(events) == kinds(alone)
        assert "".join(e.tokens.text for e in events) == "".join(e.tokens.text for e in alone)
        assert finished_of(events).usage == finished_of(alone).usage
    assert many.num_messages < 8 * 20 / 2, "tokens of one step travel together"


async def test_logprobs_and_choices_arrive_in_order(fleet: RunningFleet) -> None:
    await fleet.pair()
    sampling = generation_pb2.SamplingParams(n=3, logprobs=1)
    many = ManyClient(fleet.inference)
    await many.send(5, generate=request(10, sampling=sampling))
    await many.send(9, generate=request(10, sampling=generation_pb2.SamplingParams(n=2)))
    await many.done()
    for place, num_choices in ((5, 3), (9, 2)):
        for choice in range(num_choices):
            assert tokens_of(many.events(place), choice) == expected(10, choice)
    assert all(
        len(event.tokens.logprobs) == len(event.tokens.token_ids)
        for event in many.events(5)
        if event.WhichOneof("event") == "tokens"
    )


async def test_a_broken_call_frees_all_and_each_resumes_by_index(fleet: RunningFleet) -> None:
    _, decode = await fleet.pair(step_s=0.01)
    many = ManyClient(fleet.inference)
    originals = [request(60, f"r{place}", resume_grace_ms=20_000 * (place % 2)) for place in range(4)]
    for place, original in enumerate(originals):
        await many.send(place, generate=original)
    for place in range(4):
        await many.heard_tokens(place)
    many.call.cancel()
    await asyncio.gather(*filter(None, [many.reading]), return_exceptions=True)
    received = [tokens_of(many.events(place)) for place in range(4)]
    await until(lambda: {s.spec.fence.request_id for s in decode.running.values()} <= {"r1", "r3"})
    again = ManyClient(fleet.inference)
    for place, original in enumerate(originals):
        tokens = inference_pb2.ReceivedTokens(choice=0, token_ids=received[place])
        resume = inference_pb2.ResumeRequest(request=original, session=1, received=[tokens])
        await again.send(place, resume=resume)
    await again.done()
    for place in range(4):
        runs = [event.tokens for event in again.events(place) if event.WhichOneof("event") == "tokens"]
        assert runs[0].first_index == len(received[place])
        assert received[place] + [token_id for run in runs for token_id in run.token_ids] == expected(60)
    await until(fleet.nothing_is_held)


async def test_one_left_or_cancelled_ends_and_the_others_go_on(fleet: RunningFleet) -> None:
    await fleet.pair(step_s=0.01)
    many = ManyClient(fleet.inference)
    for place in range(3):
        await many.send(place, generate=request(40, f"r{place}"))
    for place in range(3):
        await many.heard_tokens(place)
    await many.send(0, leave=inference_pb2.Leave())
    await until(lambda: not fleet.shell.core.is_running("", "r0"))
    await fleet.inference.Cancel(inference_pb2.CancelRequest(request_id="r1"))
    await many.send(3, generate=request(40, "at once"))
    await many.send(3, leave=inference_pb2.Leave())
    await many.done()
    assert many.events(0)[-1].WhichOneof("event") == "tokens"
    assert many.events(1)[-2].choice_finished.reason == generation_pb2.FINISH_REASON_CANCELLED
    assert tokens_of(many.events(2)) == expected(40)
    await until(fleet.nothing_is_held)


@pytest.mark.parametrize(
    "wrong",
    [
        inference_pb2.GenerateRequest(),
        request(3, model="other"),
        request(3, slo=generation_pb2.Slo(deadline_ms=0)),
        request(3, sampling=generation_pb2.SamplingParams(n=99)),
    ],
)
async def test_an_error_is_that_of_a_call_of_its_own(
    fleet: RunningFleet, wrong: inference_pb2.GenerateRequest
) -> None:
    await fleet.pair()
    with pytest.raises(grpc.aio.AioRpcError) as alone:
        await events_of(fleet.inference.Generate(wrong))
    with pytest.raises(grpc.aio.AioRpcError) as resumed:
        await events_of(fleet.inference.Resume(inference_pb2.ResumeRequest(request=wrong)))
    many = ManyClient(fleet.inference)
    await many.send(0, generate=wrong)
    await many.send(1, resume=inference_pb2.ResumeRequest(request=wrong))
    await many.send(2, generate=request(5))
    await many.done()
    assert many.status(0) == rpc_status.from_call(alone.value)
    assert many.status(1) == rpc_status.from_call(resumed.value)
    assert tokens_of(many.events(2)) == expected(5)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"id": 7, "generate": request(5)}, "id is 7; accepted: more than 7"),
        ({"id": 3, "resume": inference_pb2.ResumeRequest()}, "id is 3; accepted: more than 7"),
        (
            {"id": 8, "leave": inference_pb2.Leave()},
            "id is 8; accepted: the id of a generation that",
        ),
        ({"id": 8}, "command is .*; accepted: generate, resume or leave"),
    ],
)
async def test_a_client_that_confuses_ids_ends_its_call(
    fleet: RunningFleet, message: dict[str, Any], why: str
) -> None:
    await fleet.pair(step_s=0.01)
    many = ManyClient(fleet.inference)
    await many.send(7, generate=request(1000, "r"))
    await many.heard_tokens(7)
    await many.call.write(inference_pb2.GenerateManyRequest(**message))
    error = await many.error()
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert reason_of(error) == "INVALID_FIELD"
    with pytest.raises(grpc.aio.AioRpcError, match=why):
        raise error
    await until(fleet.nothing_is_held)


async def test_unreadable_bytes_end_the_call(fleet: RunningFleet) -> None:
    async with grpc.aio.insecure_channel(fleet.address) as channel:
        call: Any = channel.stream_stream("/baton.v1.InferenceService/GenerateMany")()
        await call.write(b"\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert reason_of(caught.value) == "MALFORMED_MESSAGE"


@pytest.mark.long
async def test_of_ten_thousand_at_once_each_is_served_or_told_why_not(
    fleet: RunningFleet, pool: TokenizerPool, facts: ModelFacts
) -> None:
    await fleet.pair(step_s=0.01)
    async with served(fleet, pool, facts, None, 8) as stub:
        many = ManyClient(stub)
        for place in range(10_000):
            await many.send(place, generate=request(500))
        await many.done()
    refused = [place for place in range(10_000) if is_status(many.heard[place][-1])]
    assert {reason(many.status(place)) for place in refused} == {"ROUTER_BUSY"}
    running = sorted(set(range(10_000)) - set(refused))
    assert len(running) >= 8
    assert all(tokens_of(many.events(place)) == expected(500) for place in running)
    await until(fleet.nothing_is_held)


async def test_of_thousands_of_calls_at_once_each_is_served_or_told_why_not(
    fleet: RunningFleet, pool: TokenizerPool, facts: ModelFacts
) -> None:
    await fleet.pair()

    async def reason_of_end(stub: inference_pb2_grpc.InferenceServiceAsyncStub) -> str:
        try:
            await events_of(stub.Generate(request(1)))
        except grpc.aio.AioRpcError as error:
            return reason_of(error)
        return "served"

    async with served(fleet, pool, facts, None, 8) as stub:
        ends = await asyncio.gather(*(reason_of_end(stub) for _ in range(THOUSANDS)))
    assert "served" in ends
    assert all(ends), "an error without a reason"
    await until(fleet.nothing_is_held)


async def test_a_client_that_never_reads_harms_no_neighbour(fleet: RunningFleet) -> None:
    await fleet.pair(num_blocks=1_000_000, max_num_seqs=64, step_s=0.001)
    fleet.shell.max_pending_tokens = 1 << 30
    sampling = generation_pb2.SamplingParams(n=16)
    async with grpc.aio.insecure_channel(fleet.address, options=NARROW) as channel:
        silent = ManyClient(inference_pb2_grpc.InferenceServiceStub(channel), reads=False)
        for place in range(3):
            await silent.send(place, generate=request(8000, f"s{place}", sampling=sampling))
        neighbour = await events_of(fleet.inference.Generate(request(300, "neighbour")))
        assert tokens_of(neighbour) == expected(300)
        fleet.shell.end_stalled()
        await until(lambda: _given_up(fleet))
        reading = asyncio.create_task(silent.read())
        ends = silent.heard
        await until(lambda: all(ends[place] and is_status(ends[place][-1]) for place in range(3)))
        assert {reason(ends[place][-1]) for place in range(3)} == {"READER_TOO_SLOW"}
        silent.call.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    await until(fleet.nothing_is_held)


async def test_a_gateway_that_dies_frees_a_million_tokens(fleet: RunningFleet) -> None:
    _, decode = await fleet.pair(num_blocks=1_000_000, max_num_seqs=256, step_s=0.001)
    sampling = generation_pb2.SamplingParams(n=16)
    async with grpc.aio.insecure_channel(fleet.address) as channel:
        gateway = ManyClient(inference_pb2_grpc.InferenceServiceStub(channel))
        for place in range(8):
            await gateway.send(place, generate=request(8000, f"g{place}", sampling=sampling))
        for place in range(8):
            await gateway.heard_tokens(place)
        neighbour = asyncio.create_task(events_of(fleet.inference.Generate(request(40, "neighbour"))))
        await until(lambda: fleet.shell.core.is_running("", "neighbour"))
        assert len(decode.running) >= 8
    assert tokens_of(await neighbour) == expected(40)
    await until(lambda: not decode.running and not fleet.shell.core.state.live)
    await until(fleet.nothing_is_held)


def _given_up(fleet: RunningFleet) -> bool:
    fleet.shell.end_stalled()
    return not any(fleet.shell.core.is_running("", f"s{place}") for place in range(3))


async def test_each_generation_has_a_credential_and_a_budget(
    fleet: RunningFleet, pool: TokenizerPool, facts: ModelFacts, tmp_path: Path
) -> None:
    await fleet.pair()
    path, rich, poor = tmp_path / "auth.json", new_api_key(), new_api_key()
    add_key(path, rich, "rich")
    add_key(path, poor, "poor", budget={"requests_per_s": 0.001, "request_burst": 1})
    async with served(fleet, pool, facts, Auth(path, fleet.store), 1024) as stub:
        many = ManyClient(stub)
        for place, credential in enumerate((rich, poor, poor, "", "wrong", rich)):
            name = "other" if place == 2 else "same"  # sent again, it would be the same request
            await many.send(place, generate=request(3, name), credential=credential)
        await many.send(6, generate=request(3, tenant="poor"), credential=rich)
        await many.send(7, generate=request(3), credential=rich, acting_for="poor")
        await many.done()
        own = ManyClient(stub, (("authorization", f"Bearer {rich}"),))
        await own.send(0, generate=request(3))
        await own.send(1, generate=request(3), credential=poor)
        await own.done()
        wrong = ManyClient(stub, (("authorization", "Bearer wrong"),))
        assert reason_of(await wrong.error()) == "CREDENTIAL_INVALID"
    for place in (0, 5):
        assert tokens_of(many.events(place)) == expected(3)
    poors = [many.heard[place][-1] for place in (1, 2)]
    [refused] = [each for each in poors if isinstance(each, status_pb2.Status)]
    assert reason(refused) == "BUDGET_EXCEEDED"
    assert reason(many.status(3)) == "CREDENTIAL_MISSING"
    assert reason(many.status(4)) == "CREDENTIAL_INVALID"
    assert reason(many.status(6)) == reason(many.status(7)) == "TENANT_NOT_ALLOWED"
    assert tokens_of(own.events(0)) == expected(3)
    assert reason(own.status(1)) == "BUDGET_EXCEEDED"


async def test_a_text_that_cannot_be_read_ends_its_own_generation(
    fleet: RunningFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(reader: OutputReader, choice: int, text: str) -> list[Delta]:
        if "bad/" in reader.seed_of(choice):
            raise ValueError("unreadable")
        return []

    monkeypatch.setattr(OutputReader, "read", read)
    monkeypatch.setattr(Reading, "has_deltas", True)
    await fleet.pair(step_s=0.005)
    many = ManyClient(fleet.inference)
    await many.send(0, generate=request(20, "good"))
    await many.send(1, generate=request(20, "bad"))
    await many.done()
    assert tokens_of(many.events(0)) == expected(20)
    [*before, last] = many.heard[1]
    assert not any(is_status(event) for event in before)
    assert reason(last) == "INTERNAL_ERROR"


async def test_a_router_that_leaves_ends_a_call_with_its_last_generation(fleet: RunningFleet) -> None:
    await fleet.pair(step_s=0.01)
    unused, used = ManyClient(fleet.inference), ManyClient(fleet.inference)
    await unused.send(0, generate=request(3))
    await until(lambda: "finished" in kinds(unused.events(0)))
    await used.send(0, generate=request(20, "goes on"))
    await used.heard_tokens(0)
    fleet.service.leave()
    later = ManyClient(fleet.inference)
    await later.send(0, generate=request(3, "later"))
    for many in (unused, used, later):
        assert (await many.error()).code() is grpc.StatusCode.UNAVAILABLE
    assert tokens_of(used.events(0)) == expected(20)
