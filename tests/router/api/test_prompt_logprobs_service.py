"""Log-probabilities of prompts reach clients once, in order, before the first token, over real gRPC."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest

from baton.v1 import generation_pb2, inference_pb2
from baton.worker.v1 import worker_pb2
from tests.router.calls import PROMPT, events_of, expected, finished_of, request, tokens_of
from tests.router.conftest import RunningFleet, until
from tests.router.scripted_worker import ScriptedWorker, prompt_logprob

pytestmark = pytest.mark.integration

Events = list[inference_pb2.GenerationEvent]
WHOLE = [prompt_logprob(index) for index in range(1, len(PROMPT))]


def asked(max_tokens: int = 5, request_id: str = "", n: int = 1, **fields: Any) -> Any:
    sampling = generation_pb2.SamplingParams(prompt_logprobs=2, n=n)
    return request(max_tokens, request_id, sampling=sampling, **fields)


def told_of(events: Events, first_index: int = 1) -> list[float]:
    """All that was told of the prompt; has to come without gaps, and before any token."""
    told: list[float] = []
    for event in events:
        if event.WhichOneof("event") == "prompt_logprobs":
            assert event.prompt_logprobs.first_index == first_index + len(told)
            for token in event.prompt_logprobs.logprobs:
                index = first_index + len(told)
                assert (list(token.top_token_ids), list(token.top_logprobs)) == (
                    [index] * 2,
                    [prompt_logprob(index)] * 2,
                )
                told.append(token.logprob)
    kinds = [event.WhichOneof("event") for event in events]
    if "tokens" in kinds:
        assert "prompt_logprobs" not in kinds[kinds.index("tokens") :]
    return told


def sequences(worker: ScriptedWorker, kind: str) -> list[worker_pb2.SequenceSpec]:
    return [
        getattr(command, kind).sequence
        for command in worker.commands
        if command.WhichOneof("command") == kind
    ]


def num_held(fleet: RunningFleet) -> int:
    """Tokens that came before the log-probabilities of their prompts."""
    groups = fleet.shell.core.state.groups.values()
    return sum(len(tokens.handles) for group in groups for tokens in group.early_tokens)


@pytest.mark.parametrize("roles", [("prefill", "decode"), ("decode",)])
async def test_they_come_once_whoever_computes_the_prompt(
    fleet: RunningFleet, roles: tuple[str, ...]
) -> None:
    for role in roles:
        await fleet.add(role, role)
    events = await events_of(fleet.inference.Generate(asked(5, n=3)))
    assert told_of(events) == WHOLE
    for choice in range(3):
        assert tokens_of(events, choice) == expected(5, choice)
    once = await fleet.inference.GenerateOnce(inference_pb2.GenerateOnceRequest(request=asked(5)))
    assert [token.logprob for token in once.prompt_logprobs] == WHOLE
    assert told_of(await events_of(fleet.inference.Generate(request(5)))) == []


async def test_a_decode_worker_that_is_heard_first_waits_for_the_prompt(fleet: RunningFleet) -> None:
    prefill, _ = await fleet.pair()
    prefill.tell.clear()
    call = asyncio.create_task(events_of(fleet.inference.Generate(asked(6, "early"))))
    await until(lambda: num_held(fleet) == 6)
    prefill.tell.set()
    events = await call
    assert told_of(events) == WHOLE
    assert tokens_of(events) == expected(6)
    assert finished_of(events).usage.attempts == 1
    await until(fleet.nothing_is_held)


async def test_a_prefill_worker_that_dies_before_it_told_is_replaced(fleet: RunningFleet) -> None:
    prefill, _ = await fleet.pair()
    prefill.tell.clear()
    call = asyncio.create_task(events_of(fleet.inference.Generate(asked(6, "dead"))))
    await until(lambda: num_held(fleet) == 6)
    await fleet.add("prefill", "p1")
    await prefill.stop()
    events = await call
    assert told_of(events) == WHOLE
    assert tokens_of(events) == expected(6)
    assert finished_of(events).usage.attempts == 2


async def test_a_later_attempt_does_not_compute_them_again(fleet: RunningFleet) -> None:
    prefill, first = await fleet.pair(step_s=0.01)
    stream = aiter(fleet.inference.Generate(asked(40)))
    seen: Events = []
    while len(tokens_of(seen)) < 5:
        seen.append((await anext(stream)).event)
    first.go.clear()  # it would otherwise end while a busy Redis has not told of the other one
    await fleet.add("decode", "d1")
    await first.stop()
    seen += await events_of(stream)
    assert told_of(seen) == WHOLE
    assert tokens_of(seen) == expected(40)
    wanted = [sequence.sampling.HasField("prompt_logprobs") for sequence in sequences(prefill, "prefill")]
    assert wanted == [True, False]


async def test_an_attempt_that_told_a_part_is_gone_on_with_where_it_ended(fleet: RunningFleet) -> None:
    prefill, _ = await fleet.pair()
    prefill.go.clear()
    call = asyncio.create_task(events_of(fleet.inference.Generate(asked(5, "part"))))
    await until(lambda: bool(sequences(prefill, "prefill")))
    [spec] = sequences(prefill, "prefill")
    piece = worker_pb2.PromptLogprobs(
        handle=spec.handle, first_index=1, logprobs=WHOLE[:2], num_top=2,
        top_token_ids=[1, 1, 2, 2], top_logprobs=[-0.25, -0.25, -0.5, -0.5],
    )  # fmt: skip
    prefill.say(worker_pb2.StepReport(prompt_logprobs=[piece]))
    prefill.fail(spec.handle)
    prefill.go.set()
    events = await call
    assert told_of(events) == WHOLE
    assert tokens_of(events) == expected(5)


async def test_a_gap_in_them_fails_the_attempt(fleet: RunningFleet) -> None:
    prefill, _ = await fleet.pair()
    prefill.go.clear()
    call = asyncio.create_task(events_of(fleet.inference.Generate(asked(5, "gap"))))
    await until(lambda: bool(sequences(prefill, "prefill")))
    [spec] = sequences(prefill, "prefill")
    piece = worker_pb2.PromptLogprobs(handle=spec.handle, first_index=2, logprobs=WHOLE[1:])
    prefill.say(worker_pb2.StepReport(prompt_logprobs=[piece]))
    await until(lambda: len(sequences(prefill, "prefill")) == 2)
    prefill.go.set()
    events = await call
    assert told_of(events) == WHOLE
    assert finished_of(events).usage.attempts == 2


@pytest.mark.parametrize("num_received", [0, 2, len(WHOLE)])
async def test_resume_tells_what_was_not_received(fleet: RunningFleet, num_received: int) -> None:
    prefill, _ = await fleet.pair()
    resume = inference_pb2.ResumeRequest(
        request=asked(5, "resumed"),
        session=1,
        received=[inference_pb2.ReceivedTokens(choice=0, token_ids=expected(2))],
        received_prompt_logprobs=num_received,
    )
    events = await events_of(fleet.inference.Resume(resume))
    assert told_of(events, 1 + num_received) == WHOLE[num_received:]
    runs = [event.tokens for event in events if event.WhichOneof("event") == "tokens"]
    assert [token_id for run in runs for token_id in run.token_ids] == expected(3, first=2)
    [spec] = sequences(prefill, "prefill")
    assert spec.sampling.HasField("prompt_logprobs") == (num_received < len(WHOLE))


@pytest.mark.parametrize("num_received", [0, 1, len(WHOLE)])
async def test_a_call_that_attaches_hears_what_it_has_not_received(
    fleet: RunningFleet, num_received: int
) -> None:
    prefill, _ = await fleet.pair()
    original = asked(5, "attached")
    await events_of(fleet.inference.Generate(original))
    again = await events_of(fleet.inference.Generate(original))
    assert told_of(again) == WHOLE
    resume = inference_pb2.ResumeRequest(request=original, session=1, received_prompt_logprobs=num_received)
    events = await events_of(fleet.inference.Resume(resume))
    assert told_of(events, 1 + num_received) == WHOLE[num_received:]
    assert tokens_of(events) == expected(5)
    assert len(sequences(prefill, "prefill")) == 1


async def test_more_than_there_are_cannot_have_been_received(fleet: RunningFleet) -> None:
    await fleet.pair()
    for original, num_received in ((asked(5, "r"), len(PROMPT)), (request(5, "r"), 1)):
        resume = inference_pb2.ResumeRequest(
            request=original, session=1, received_prompt_logprobs=num_received
        )
        with pytest.raises(grpc.aio.AioRpcError, match="received_prompt_logprobs"):
            await events_of(fleet.inference.Resume(resume))
