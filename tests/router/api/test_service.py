"""The whole router over real gRPC and Redis, with scripted workers, where nothing goes wrong."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import grpc.aio
import pytest
from google.protobuf import struct_pb2
from structlog.testing import capture_logs

from baton.operators.v1 import fleet_pb2
from baton.v1 import generation_pb2, inference_pb2
from tests.router.calls import PROMPT, events_of, expected, finished_of, request, tokens_of
from tests.router.conftest import RunningFleet, until
from tests.router.scripted_worker import ScriptedWorker, text_of

pytestmark = pytest.mark.integration


async def test_generates_through_prefill_and_decode(fleet: RunningFleet) -> None:
    await fleet.pair()
    events = await events_of(fleet.inference.Generate(request(5)))
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[0] == "accepted"
    assert kinds[-2:] == ["choice_finished", "finished"]
    assert tokens_of(events) == expected(5)
    text = "".join(event.tokens.text for event in events)
    assert text == "".join(text_of(token_id) for token_id in expected(5))
    await until(fleet.nothing_is_held)


async def test_time_split_adds_up_to_the_end_to_end_time(fleet: RunningFleet) -> None:
    await fleet.pair(step_s=0.01)
    finished = finished_of(await events_of(fleet.inference.Generate(request(6))))
    split, delivery = finished.split, finished.delivery
    parts = split.queue_ms + split.prefill_ms + split.handoff_ms + split.decode_ms + split.relay_ms
    assert parts == pytest.approx(delivery.e2e_ms)
    assert min(split.queue_ms, split.prefill_ms, split.handoff_ms, split.decode_ms, split.relay_ms) >= 0
    assert 0 < delivery.ttft_ms <= delivery.e2e_ms
    assert delivery.tpot_ms >= 8
    assert finished.usage.prompt_tokens == len(PROMPT)
    assert finished.usage.output_tokens == 6
    assert finished.path == inference_pb2.PATH_DISAGGREGATED
    assert finished.usage.attempts == 1


async def test_choices_of_one_prompt_each_get_their_own_tokens(fleet: RunningFleet) -> None:
    await fleet.pair()
    sampling = generation_pb2.SamplingParams(n=3, logprobs=1)
    events = await events_of(fleet.inference.Generate(request(4, sampling=sampling)))
    for choice in range(3):
        assert tokens_of(events, choice) == expected(4, choice)
    runs = [event.tokens for event in events if event.WhichOneof("event") == "tokens"]
    assert all(len(run.logprobs) == len(run.token_ids) for run in runs)
    assert sorted(e.choice_finished.choice for e in events if e.WhichOneof("event") == "choice_finished") == [
        0,
        1,
        2,
    ]


async def test_a_one_token_answer_never_starts_on_the_decode_worker(fleet: RunningFleet) -> None:
    _, decode = await fleet.pair()
    decode.go.clear()
    events = await events_of(fleet.inference.Generate(request(1)))
    assert tokens_of(events) == expected(1)
    cancelled = lambda worker: any(c.WhichOneof("command") == "cancel" for c in worker.commands)  # noqa: E731 -- said once
    await until(lambda: cancelled(decode))
    await until(fleet.nothing_is_held)


async def test_generate_once_answers_with_the_whole_text(fleet: RunningFleet) -> None:
    await fleet.pair()
    answer = await fleet.inference.GenerateOnce(inference_pb2.GenerateOnceRequest(request=request(5, "once")))
    assert answer.request_id == "once"
    assert list(answer.choices[0].token_ids) == expected(5)
    assert answer.choices[0].text == "".join(text_of(entry) for entry in expected(5))
    assert answer.choices[0].finish_reason == generation_pb2.FINISH_REASON_LENGTH


async def test_text_and_chat_are_tokenised_as_the_model_does(fleet: RunningFleet) -> None:
    chat = inference_pb2.ChatInput(messages=[inference_pb2.ChatMessage(role="user", content="w7")])
    counted = await fleet.inference.CountTokens(inference_pb2.CountTokensRequest(chat=chat))
    assert list(counted.token_ids) == [100, 7, 101]
    counted = await fleet.inference.CountTokens(inference_pb2.CountTokensRequest(text="w5 w6"))
    assert list(counted.token_ids) == [5, 6]


async def test_a_chat_template_is_told_what_the_caller_says(fleet: RunningFleet) -> None:
    _, decode = await fleet.pair()

    async def tokens_of_chat(role: str = "user", **fields: Any) -> list[int]:
        chat = inference_pb2.ChatInput(
            messages=[inference_pb2.ChatMessage(role=role, content="w7")], **fields
        )
        counted = await fleet.inference.CountTokens(inference_pb2.CountTokensRequest(chat=chat))
        await events_of(fleet.inference.Generate(inference_pb2.GenerateRequest(chat=chat)))
        sent = [
            command.receive.sequence
            for command in decode.commands
            if command.WhichOneof("command") == "receive"
        ]
        assert list(sent[-1].prompt_token_ids) == list(counted.token_ids)
        return list(counted.token_ids)

    words = struct_pb2.Struct()
    words.update({"words": ["w8", "w9"]})
    assert await tokens_of_chat() == [100, 7, 101]
    assert await tokens_of_chat(template_arguments=words) == [100, 7, 8, 9, 101]
    assert await tokens_of_chat(add_generation_prompt=False) == [100, 7]
    assert await tokens_of_chat("assistant", continue_final_message=True) == [101, 7]


def arguments(**values: Any) -> inference_pb2.ChatInput:
    chat = inference_pb2.ChatInput(messages=[inference_pb2.ChatMessage(role="user", content="w7")])
    chat.template_arguments.update(values)
    return chat


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth else []


@pytest.mark.parametrize(
    ("chat", "field"),
    [
        (arguments(messages=[]), "chat.template_arguments"),
        (arguments(add_generation_prompt=True), "chat.template_arguments"),
        (arguments(words="x" * 70_000), "chat.template_arguments"),
        (arguments(words=nested(30)), "chat.template_arguments"),
        (arguments(words=5), "chat.messages"),
        (
            inference_pb2.ChatInput(
                messages=[inference_pb2.ChatMessage(role="user", content="w7")],
                add_generation_prompt=True,
                continue_final_message=True,
            ),
            "chat.continue_final_message",
        ),
    ],
)
async def test_what_a_chat_template_cannot_be_told_is_named(
    fleet: RunningFleet, chat: inference_pb2.ChatInput, field: str
) -> None:
    for call in (
        lambda: fleet.inference.CountTokens(inference_pb2.CountTokensRequest(chat=chat)),
        lambda: events_of(fleet.inference.Generate(inference_pb2.GenerateRequest(chat=chat))),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (refused.value.details() or "").startswith(f"{field} is ")


async def test_a_truncated_prompt_keeps_its_last_tokens(
    fleet: RunningFleet,
) -> None:
    _, decode = await fleet.pair()
    asked = request(3, truncate_prompt_tokens=2)
    events = await events_of(fleet.inference.Generate(asked))
    assert events[0].accepted.prompt_tokens == 2
    assert finished_of(events).usage.prompt_tokens == 2
    sequence = next(
        command.receive.sequence for command in decode.commands if command.WhichOneof("command") == "receive"
    )
    assert tuple(sequence.prompt_token_ids) == PROMPT[-2:]
    longer = request(3, truncate_prompt_tokens=50)
    assert finished_of(await events_of(fleet.inference.Generate(longer))).usage.prompt_tokens == len(PROMPT)
    quoted = await fleet.inference.Quote(inference_pb2.QuoteRequest(request=asked))
    assert quoted.prompt_tokens == 2
    # What would be too long for the model's context is not once it is cut.
    text = inference_pb2.GenerateRequest(text="w5 " * 9000 + "w6 w7", truncate_prompt_tokens=2)
    text.stop.max_tokens = 3
    await events_of(fleet.inference.Generate(text))
    sequence = [
        command.receive.sequence for command in decode.commands if command.WhichOneof("command") == "receive"
    ][-1]
    assert list(sequence.prompt_token_ids) == [6, 7]


async def test_bad_words_go_to_workers_as_tokens(fleet: RunningFleet) -> None:
    decode = await fleet.add("decode", "d0")
    sampling = generation_pb2.SamplingParams(allowed_token_ids=[9, 5, 9], bad_words=["w5 w6", "w7"])
    await events_of(fleet.inference.Generate(request(3, sampling=sampling)))
    [sequence] = [
        command.decode.sequence for command in decode.commands if command.WhichOneof("command") == "decode"
    ]
    assert list(sequence.sampling.allowed_token_ids) == [5, 9]
    assert [list(bad_word.token_ids) for bad_word in sequence.bad_words] == [[5, 6], [7]]
    eos_alone = generation_pb2.SamplingParams(allowed_token_ids=[0])
    wrongs: list[tuple[inference_pb2.GenerateRequest, str]] = [
        (
            request(3, sampling=generation_pb2.SamplingParams(allowed_token_ids=[7], bad_words=["w7"])),
            "allowed",
        ),
        (request(3, sampling=eos_alone), "allowed"),
        (request(3, sampling=generation_pb2.SamplingParams(allowed_token_ids=[128])), "allowed"),
        (request(3, sampling=generation_pb2.SamplingParams(allowed_token_ids=[5] * 8193)), "allowed"),
        (request(3, sampling=generation_pb2.SamplingParams(bad_words=["w5", ""])), "bad_words"),
        (request(3, sampling=generation_pb2.SamplingParams(bad_words=["w5"] * 129)), "bad_words"),
        (request(3, sampling=generation_pb2.SamplingParams(bad_words=["w" * 257])), "bad_words"),
    ]
    wrongs[1][0].stop.min_tokens = 1
    for wrong, field in wrongs:
        with pytest.raises(grpc.aio.AioRpcError, match=rf"sampling\.{field}") as refused:
            await events_of(fleet.inference.Generate(wrong))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await events_of(fleet.inference.Generate(request(3, sampling=eos_alone)))


async def test_token_ids_become_text_as_the_tokenizer_decodes_them(fleet: RunningFleet) -> None:
    async def text_of_ids(token_ids: Any, **fields: Any) -> str:
        asked = inference_pb2.DetokenizeRequest(token_ids=token_ids, **fields)
        return (await fleet.inference.Detokenize(asked)).text

    assert await text_of_ids([7, 0, 101]) == "w7 assistant"
    assert await text_of_ids([7, 0, 101], skip_special_tokens=True) == "w7 assistant"
    assert await text_of_ids([7, 0, 101], skip_special_tokens=False) == "w7 <eos> assistant"
    assert await text_of_ids([]) == ""
    assert await text_of_ids([7, 127]) == "w7", "the model's vocabulary may be larger than the tokenizer's"
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"token_ids": [128]}, "token_ids"),
        ({"model": "x"}, "model"),
    ]
    for wrong, field in wrongs:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await text_of_ids(**{"token_ids": [7], **wrong})
        assert (refused.value.details() or "").startswith(field)
    with pytest.raises(grpc.aio.AioRpcError, match="8193 tokens"):
        await text_of_ids([7] * 8193)


async def test_a_client_is_told_which_weights_answer(fleet: RunningFleet) -> None:
    async def listed() -> str:
        return (await fleet.inference.ListModels(inference_pb2.ListModelsRequest())).models[0].fingerprint

    assert await listed() == ""
    worker, _ = await fleet.pair()
    events = await events_of(fleet.inference.Generate(request(2)))
    assert events[0].accepted.fingerprint == worker.fingerprint
    assert await listed() == worker.fingerprint


async def test_a_decode_worker_prefills_without_a_prefill_worker(fleet: RunningFleet) -> None:
    decode = await fleet.add("decode", "d0")
    events = await events_of(fleet.inference.Generate(request(5)))
    assert tokens_of(events) == expected(5)
    assert finished_of(events).split.handoff_ms == 0
    assert finished_of(events).path == inference_pb2.PATH_AGGREGATED
    assert [c.WhichOneof("command") for c in decode.commands] == ["decode"]
    await until(fleet.nothing_is_held)


async def test_many_streams_at_once_all_finish_and_leave_nothing_held(fleet: RunningFleet) -> None:
    await fleet.pair(step_s=0.002)
    calls = [fleet.inference.Generate(request(count)) for count in range(1, 33)]
    for count, events in zip(range(1, 33), await asyncio.gather(*map(events_of, calls)), strict=True):
        assert tokens_of(events) == expected(count)
    await until(fleet.nothing_is_held)
    assert fleet.shell.core.state.groups == {}


async def test_worker_of_another_model_is_never_used(fleet: RunningFleet) -> None:
    await fleet.pair()
    stranger = ScriptedWorker("decode", "stranger", fleet.handoffs)
    stranger.fingerprint = "other"
    fleet.workers.append(stranger)
    await stranger.start()
    await stranger.announce(fleet.store)
    await until(lambda: bool(fleet.shell.discovery.refused))
    assert stranger.record.key not in fleet.shell.core.state.fleet.workers


async def test_worker_of_another_commit_is_never_used(fleet: RunningFleet) -> None:
    await fleet.pair()
    stranger = ScriptedWorker("decode", "stranger", fleet.handoffs)
    fleet.workers.append(stranger)
    await stranger.start()
    record = replace(stranger.record, model_commit="c" * 40)
    with capture_logs() as logs:
        await fleet.store.register_worker(record, ttl_s=600.0)
        await until(lambda: bool(fleet.shell.discovery.refused))
    (refused,) = (log for log in logs if log["event"] == "worker_refused")
    assert f"model_commit='{'c' * 40}'" in refused["has"]
    assert "model_commit=''" in refused["accepted"]
    assert stranger.record.key not in fleet.shell.core.state.fleet.workers


async def test_the_refusal_of_other_adapter_files_names_the_adapter(fleet: RunningFleet) -> None:
    with capture_logs() as logs:
        for worker_id, digest in (("d0", "a"), ("d1", "b")):
            worker = ScriptedWorker("decode", worker_id, fleet.handoffs)
            worker.adapters = {"legal": digest}
            fleet.workers.append(worker)
            await worker.start()
            await worker.announce(fleet.store)
            await until(lambda: fleet.shell.discovery.num_joined == 1)
        await until(lambda: bool(fleet.shell.discovery.refused))
    (refused,) = (log for log in logs if log["event"] == "worker_refused")
    assert refused["worker"] == "d1"
    assert refused["has"] == "adapter legal with files of digest b"
    assert refused["accepted"] == "the fleet's files, of digest a, or another name"


async def test_draining_worker_gets_nothing_new(fleet: RunningFleet) -> None:
    _, first = await fleet.pair()
    second = await fleet.add("decode", "d1")
    drained = await fleet.operators.Drain(fleet_pb2.DrainRequest(worker_id="d0"))
    assert drained.draining
    for _ in range(6):
        await events_of(fleet.inference.Generate(request(3)))
    assert [c.WhichOneof("command") for c in first.commands] == ["drain"]
    assert second.commands
    unknown = await fleet.operators.Drain(fleet_pb2.DrainRequest(worker_id="nobody"))
    assert not unknown.draining


async def test_operators_see_workers_and_counters(fleet: RunningFleet) -> None:
    await fleet.pair()
    await events_of(fleet.inference.Generate(request(5)))
    watching = fleet.operators.Watch(fleet_pb2.WatchRequest(interval_ms=100))
    watched = await anext(aiter(watching))
    assert {worker.worker_id for worker in watched.workers} == {"p0", "d0"}
    assert watched.counters.finished == 1
    assert watched.counters.relayed_tokens == 5
    assert watched.queue.redis_reachable
    described = await fleet.operators.Describe(fleet_pb2.DescribeRequest())
    assert (described.model_name, described.placement) == ("model", "disaggregated")
