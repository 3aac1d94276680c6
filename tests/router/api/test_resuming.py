"""Calls that go on where another one broke, and calls that name a request again, over real gRPC."""

from __future__ import annotations

from typing import Any

import grpc.aio
import pytest

from baton.v1 import generation_pb2, inference_pb2
from tests.router.calls import PROMPT, events_of, expected, finished_of, request, tokens_of
from tests.router.conftest import RunningFleet, until

pytestmark = pytest.mark.integration


async def broken_off(fleet: RunningFleet, original: inference_pb2.GenerateRequest) -> list[int]:
    """Return what a call brought until its client left it."""
    call = fleet.inference.Generate(original)
    stream = aiter(call)
    seen: list[inference_pb2.GenerationEvent] = []
    while len(tokens_of(seen)) < 5:
        seen.append((await anext(stream)).event)
    call.cancel()
    return tokens_of(seen)


async def resumed(
    fleet: RunningFleet, original: inference_pb2.GenerateRequest, received: list[int]
) -> list[inference_pb2.GenerationEvent]:
    tokens = inference_pb2.ReceivedTokens(choice=0, token_ids=received)
    resume = inference_pb2.ResumeRequest(request=original, session=1, received=[tokens])
    return await events_of(fleet.inference.Resume(resume))


async def test_resume_goes_on_from_the_next_index_where_the_call_broke(fleet: RunningFleet) -> None:
    _, decode = await fleet.pair(step_s=0.01)
    original = request(30, "resumed", resume_grace_ms=20_000)
    received = await broken_off(fleet, original)
    events = await resumed(fleet, original, received)
    runs = [event.tokens for event in events if event.WhichOneof("event") == "tokens"]
    assert runs[0].first_index == len(received)
    assert received + [token_id for run in runs for token_id in run.token_ids] == expected(30)
    assert len([c for c in decode.commands if c.WhichOneof("command") == "receive"]) == 1


async def test_resume_goes_on_where_the_client_had_been_given_up(fleet: RunningFleet) -> None:
    _, decode = await fleet.pair(step_s=0.01)
    original = request(300, "late", resume_grace_ms=1)
    received = await broken_off(fleet, original)
    await until(lambda: not decode.running)
    events = await resumed(fleet, original, received)
    runs = [event.tokens for event in events if event.WhichOneof("event") == "tokens"]
    assert received + [token_id for run in runs for token_id in run.token_ids] == expected(300)
    assert events[-2].choice_finished.reason == generation_pb2.FINISH_REASON_LENGTH


async def test_resume_succeeds_where_nobody_remembers_the_request(fleet: RunningFleet) -> None:
    _, decode = await fleet.pair()
    resumed = await events_of(
        fleet.inference.Resume(
            inference_pb2.ResumeRequest(
                request=request(12, "forgotten"),
                session=3,
                received=[inference_pb2.ReceivedTokens(choice=0, token_ids=expected(4))],
            )
        )
    )
    runs = [event.tokens for event in resumed if event.WhichOneof("event") == "tokens"]
    assert runs[0].first_index == 4
    assert [token_id for run in runs for token_id in run.token_ids] == expected(8, first=4)
    receive = next(c.receive for c in decode.commands if c.WhichOneof("command") == "receive")
    assert list(receive.sequence.output_token_ids) == expected(4)
    assert receive.sequence.fence.session == 3


async def test_resume_with_everything_received_only_says_how_it_ended(fleet: RunningFleet) -> None:
    await fleet.pair()
    received = [inference_pb2.ReceivedTokens(choice=0, token_ids=expected(4))]
    resume = inference_pb2.ResumeRequest(request=request(4, "complete"), session=1, received=received)
    events = await events_of(fleet.inference.Resume(resume))
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds == ["accepted", "choice_finished", "finished"]
    assert events[1].choice_finished.reason == generation_pb2.FINISH_REASON_LENGTH


STOP, LENGTH = generation_pb2.FINISH_REASON_STOP, generation_pb2.FINISH_REASON_LENGTH


@pytest.mark.parametrize(
    ("received", "rules", "reason", "matched"),
    [
        ("w5 w6", {"stop_strings": ["w9", "w6"]}, STOP, {"stop_string": "w6"}),
        ("w5 w6 w7", {"stop_strings": ["w9", "w6"], "min_tokens": 3}, LENGTH, {}),
        ("w5 w6 w7", {"stop_strings": ["w9", "w6 w7"], "min_tokens": 3}, STOP, {"stop_string": "w6 w7"}),
        ("w5 w6", {"stop_token_ids": [6]}, STOP, {"stop_token_id": 6}),
        ("w5 w6", {"stop_token_ids": [6], "stop_strings": ["w6"]}, STOP, {"stop_token_id": 6}),
    ],
)
async def test_resume_judges_received_tokens_as_their_worker_did(
    fleet: RunningFleet, received: str, rules: dict[str, Any], reason: int, matched: dict[str, Any]
) -> None:
    await fleet.pair()
    original = request(5, "judged")
    original.stop.MergeFrom(generation_pb2.StopRules(**rules))
    events = await resumed(fleet, original, [int(word[1:]) for word in received.split()])
    told = events[-2].choice_finished
    assert told.reason == reason
    assert {field.name: value for field, value in told.ListFields() if field.containing_oneof} == matched
    assert told.output_tokens == (len(received.split()) if reason == STOP else 5)


async def test_same_request_id_with_other_content_is_refused(fleet: RunningFleet) -> None:
    await fleet.pair()
    await events_of(fleet.inference.Generate(request(5, "taken")))
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await events_of(fleet.inference.Generate(request(6, "taken")))
    assert error.value.code() is grpc.StatusCode.ALREADY_EXISTS


async def test_received_tokens_found_in_a_cache_are_no_cached_prompt_tokens(fleet: RunningFleet) -> None:
    await fleet.pair(cached_tokens=len(PROMPT) + 4)
    received = inference_pb2.ReceivedTokens(choice=0, token_ids=expected(6))
    resume = inference_pb2.ResumeRequest(request=request(12, "cached"), session=1, received=[received])
    usage = finished_of(await events_of(fleet.inference.Resume(resume))).usage
    assert usage.prompt_tokens == len(PROMPT)
    assert usage.cached_prompt_tokens == len(PROMPT)
    assert usage.output_tokens == 12
