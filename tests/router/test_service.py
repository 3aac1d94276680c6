"""The whole router over real gRPC and Redis, with scripted workers."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status  # type: ignore[import-untyped]  # ships no annotations

from baton.v1 import fleet_pb2, generation_pb2, inference_pb2, inference_pb2_grpc, worker_pb2
from router.metrics import NAMESPACE
from router.tokenizer_pool import TokenizerPool
from scheduling.admission import ITL_MARGIN
from tests.router.conftest import RunningFleet, until
from tests.router.scripted_worker import ScriptedWorker, text_of, token_at

pytestmark = pytest.mark.integration

PROMPT = (5, 6, 7, 8, 9)


def request(max_tokens: int = 5, request_id: str = "", **fields: object) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        request_id=request_id,
        tokens=inference_pb2.TokenInput(token_ids=PROMPT),
        stop=generation_pb2.StopRules(max_tokens=max_tokens),
        **fields,  # type: ignore[arg-type]  # what a field takes is checked by the message
    )


def expected(count: int, choice: int = 0, first: int = 0) -> list[int]:
    return [token_at(PROMPT, choice, index) for index in range(first, first + count)]


async def events_of(call: object) -> list[inference_pb2.GenerationEvent]:
    return [response.event async for response in call]  # type: ignore[attr-defined]  # a call is an async iterable


def tokens_of(events: list[inference_pb2.GenerationEvent], choice: int = 0) -> list[int]:
    found: list[int] = []
    for event in events:
        if event.WhichOneof("event") == "tokens" and event.tokens.choice == choice:
            assert event.tokens.first_index == len(found)
            found.extend(event.tokens.token_ids)
    return found


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


def finished_of(events: list[inference_pb2.GenerationEvent]) -> inference_pb2.Finished:
    assert events[-1].WhichOneof("event") == "finished"
    return events[-1].finished


@pytest.mark.parametrize("lost", ["lose_commands", "lose_reports"])
async def test_a_message_lost_on_a_living_stream_loses_no_token(fleet: RunningFleet, lost: str) -> None:
    _, decode = await fleet.pair()
    setattr(decode, lost, 1)
    events = await events_of(fleet.inference.Generate(request(5)))
    assert tokens_of(events) == expected(5)
    assert finished_of(events).usage.attempts == 2
    await until(fleet.nothing_is_held)


async def test_a_request_cancelled_while_it_is_tokenised_never_runs(
    fleet: RunningFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = await fleet.pair()
    tokenising, go_on, encode = asyncio.Event(), asyncio.Event(), TokenizerPool.encode

    async def slowly(pool: TokenizerPool, text: str, *, add_special_tokens: bool) -> list[int]:
        tokenising.set()
        await go_on.wait()
        return await encode(pool, text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(TokenizerPool, "encode", slowly)
    long = inference_pb2.GenerateRequest(request_id="slow", text="w5 w6 w7")
    events = asyncio.create_task(events_of(fleet.inference.Generate(long)))
    await tokenising.wait()
    cancelled = await fleet.inference.Cancel(inference_pb2.CancelRequest(request_id="slow"))
    assert cancelled.cancelled
    again = await fleet.inference.Cancel(inference_pb2.CancelRequest(request_id="other"))
    assert not again.cancelled
    go_on.set()
    [ended] = [one.choice_finished for one in await events if one.WhichOneof("event") == "choice_finished"]
    assert ended.reason == generation_pb2.FINISH_REASON_CANCELLED
    assert not prefill.commands
    assert not decode.commands
    await until(fleet.nothing_is_held)


async def test_a_deadline_or_a_broken_call_ends_the_wait_for_the_tokenizer(
    fleet: RunningFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = await fleet.pair()
    tokenising, ended = asyncio.Event(), asyncio.Event()

    async def without_end(pool: TokenizerPool, text: str, *, add_special_tokens: bool) -> list[int]:
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


async def test_what_ends_with_its_first_token_never_starts_on_the_decode_worker(fleet: RunningFleet) -> None:
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
    assert answer.choices[0].text == "".join(text_of(one) for one in expected(5))
    assert answer.choices[0].finish_reason == generation_pb2.FINISH_REASON_LENGTH


async def test_text_and_chat_are_tokenised_as_the_model_does(fleet: RunningFleet) -> None:
    chat = inference_pb2.ChatInput(messages=[inference_pb2.ChatMessage(role="user", content="w7")])
    counted = await fleet.inference.CountTokens(inference_pb2.CountTokensRequest(chat=chat))
    assert list(counted.token_ids) == [100, 7, 101]
    counted = await fleet.inference.CountTokens(inference_pb2.CountTokensRequest(text="w5 w6"))
    assert list(counted.token_ids) == [5, 6]


async def test_decode_worker_prefills_itself_when_there_is_no_prefill_worker(fleet: RunningFleet) -> None:
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
    assert fleet.shell.core.book.groups == {}


async def test_decode_worker_killed_mid_stream_costs_no_token(fleet: RunningFleet) -> None:
    _, first = await fleet.pair(step_s=0.01)
    stream = aiter(fleet.inference.Generate(request(40)))
    seen: list[inference_pb2.GenerationEvent] = []
    while len(tokens_of(seen)) < 5:
        seen.append((await anext(stream)).event)
    await fleet.add("decode", "d1")
    await first.stop()
    seen += await events_of(stream)
    assert tokens_of(seen) == expected(40)
    assert finished_of(seen).usage.attempts == 2
    await until(fleet.nothing_is_held)


async def test_prefill_worker_killed_before_the_first_token_costs_only_time(fleet: RunningFleet) -> None:
    first, _ = await fleet.pair()
    first.go.clear()
    call = asyncio.ensure_future(events_of(fleet.inference.Generate(request(5))))
    await until(lambda: any(c.WhichOneof("command") == "prefill" for c in first.commands))
    await fleet.add("prefill", "p1")
    await first.stop()
    assert tokens_of(await call) == expected(5)
    await until(fleet.nothing_is_held)


async def test_request_that_fails_everywhere_fails_clearly_after_three_attempts(fleet: RunningFleet) -> None:
    await fleet.pair(refuse=True)
    events = await events_of(fleet.inference.Generate(request(5)))
    finished = finished_of(events)
    assert finished.usage.attempts == 3
    assert "3 attempts failed" in finished.error
    assert events[-2].choice_finished.reason == generation_pb2.FINISH_REASON_FAILED
    await until(fleet.nothing_is_held)


async def test_failed_attempts_are_counted_on_from_what_the_client_brings(fleet: RunningFleet) -> None:
    await fleet.pair(refuse=True)
    asked = request(5, "walks", resume_grace_ms=1000)
    events = await events_of(fleet.inference.Generate(asked))
    told = [one.retrying.failed_attempts for one in events if one.WhichOneof("event") == "retrying"]
    assert told == [1, 2]
    asked.request_id = "walked"
    resumed = inference_pb2.ResumeRequest(request=asked, session=1, failed_attempts=told[-1])
    assert finished_of(await events_of(fleet.inference.Resume(resumed))).usage.attempts == 1
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


async def test_cancel_before_the_first_token_stops_the_prefill(fleet: RunningFleet) -> None:
    prefill, _ = await fleet.pair()
    prefill.go.clear()
    call = fleet.inference.Generate(request(20, "early"))
    await until(lambda: any(c.WhichOneof("command") == "prefill" for c in prefill.commands))
    await fleet.inference.Cancel(inference_pb2.CancelRequest(request_id="early"))
    assert tokens_of(await events_of(call)) == []
    await until(lambda: any(c.WhichOneof("command") == "cancel" for c in prefill.commands))
    await until(fleet.nothing_is_held)


async def test_deadline_cuts_the_generation_off_and_keeps_what_was_delivered(fleet: RunningFleet) -> None:
    _, decode = await fleet.pair(step_s=0.02)
    slo = generation_pb2.Slo(deadline_ms=300)
    events = await events_of(fleet.inference.Generate(request(200, slo=slo)))
    assert events[-2].choice_finished.reason == generation_pb2.FINISH_REASON_DEADLINE
    tokens = tokens_of(events)
    assert 0 < len(tokens) < 200
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


async def test_resume_goes_on_from_the_next_index_where_the_call_broke(fleet: RunningFleet) -> None:
    _, decode = await fleet.pair(step_s=0.01)
    original = request(30, "resumed", resume_grace_ms=20_000)
    call = fleet.inference.Generate(original)
    stream = aiter(call)
    seen: list[inference_pb2.GenerationEvent] = []
    while len(tokens_of(seen)) < 5:
        seen.append((await anext(stream)).event)
    call.cancel()
    received = tokens_of(seen)
    resumed = await events_of(
        fleet.inference.Resume(
            inference_pb2.ResumeRequest(
                request=original,
                session=1,
                received=[inference_pb2.ReceivedTokens(choice=0, token_ids=received)],
            )
        )
    )
    runs = [event.tokens for event in resumed if event.WhichOneof("event") == "tokens"]
    assert runs[0].first_index == len(received)
    assert received + [one for run in runs for one in run.token_ids] == expected(30)
    assert len([c for c in decode.commands if c.WhichOneof("command") == "receive"]) == 1


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
    assert [one for run in runs for one in run.token_ids] == expected(8, first=4)
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


async def test_same_request_again_attaches_and_hears_everything(fleet: RunningFleet) -> None:
    _, decode = await fleet.pair(step_s=0.01)
    first = fleet.inference.Generate(request(20, "twice", resume_grace_ms=5000))
    await until(lambda: bool(decode.running))
    second = await events_of(fleet.inference.Generate(request(20, "twice", resume_grace_ms=5000)))
    assert tokens_of(second) == expected(20)
    with pytest.raises(grpc.aio.AioRpcError) as replaced:
        await events_of(first)
    assert replaced.value.code() is grpc.StatusCode.ABORTED
    third = await events_of(fleet.inference.Generate(request(20, "twice")))
    assert tokens_of(third) == expected(20)
    assert len([c for c in decode.commands if c.WhichOneof("command") == "receive"]) == 1


async def test_same_request_id_with_other_content_is_refused(fleet: RunningFleet) -> None:
    await fleet.pair()
    await events_of(fleet.inference.Generate(request(5, "taken")))
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await events_of(fleet.inference.Generate(request(6, "taken")))
    assert error.value.code() is grpc.StatusCode.ALREADY_EXISTS


async def test_slo_that_cannot_be_met_is_refused_at_once_with_what_could(fleet: RunningFleet) -> None:
    await fleet.pair(step_s=0.05)
    slo = generation_pb2.Slo(ttft_ms=10)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await events_of(fleet.inference.Generate(request(5, slo=slo)))
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    details = details_of(error.value)
    refusal = details["baton.v1.SloRefusal"]
    assert refusal.attainable_ttft_ms >= 50
    assert details["google.rpc.RetryInfo"].retry_delay.ToMilliseconds() >= 100
    await until(fleet.nothing_is_held)
    attainable = generation_pb2.Slo(ttft_ms=refusal.attainable_ttft_ms)
    assert tokens_of(await events_of(fleet.inference.Generate(request(5, slo=attainable)))) == expected(5)


async def test_a_gap_that_cannot_be_promised_is_refused_and_one_that_was_is_judged(
    fleet: RunningFleet,
) -> None:
    await fleet.pair(step_s=0.05)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await events_of(fleet.inference.Generate(request(5, slo=generation_pb2.Slo(itl_ms=10))))
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


def details_of(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    status = rpc_status.from_call(error)
    found = {}
    for packed in status.details:
        for kind in (inference_pb2.SloRefusal, error_details_pb2.RetryInfo, error_details_pb2.BadRequest):
            message = kind()
            if packed.Unpack(message):
                found[kind.DESCRIPTOR.full_name] = message
    return found


async def test_quote_says_what_admission_would(fleet: RunningFleet) -> None:
    await fleet.pair(step_s=0.05)
    slo = generation_pb2.Slo(ttft_ms=10)
    quoted = await fleet.inference.Quote(inference_pb2.QuoteRequest(request=request(5, slo=slo)))
    assert quoted.verdict == inference_pb2.VERDICT_REFUSED
    assert quoted.retry_after_ms >= 100
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


async def test_worker_of_another_model_is_never_used(fleet: RunningFleet) -> None:
    await fleet.pair()
    stranger = ScriptedWorker("decode", "stranger", fleet.handoffs)
    stranger.fingerprint = "other"
    fleet.workers.append(stranger)
    await stranger.start()
    await stranger.announce(fleet.store)
    await until(lambda: bool(fleet.shell.discovery.refused))
    assert stranger.record.key not in fleet.shell.core.book.fleet.workers


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


async def test_client_that_does_not_read_is_cut_off_and_its_work_freed(fleet: RunningFleet) -> None:
    fleet.shell.max_pending_tokens = 64
    _, decode = await fleet.pair(num_blocks=100_000)
    sampling = generation_pb2.SamplingParams(n=8, logprobs=1)
    options = (("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0))
    async with grpc.aio.insecure_channel(fleet.address, options=options) as channel:
        call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(request(8000, sampling=sampling))
        await call.read()
        await until(lambda: any(c.WhichOneof("command") == "receive" for c in decode.commands))
        await until(lambda: fleet.shell.core.book.live == {} and not decode.running)
        await until(fleet.nothing_is_held)


async def test_a_report_that_makes_no_sense_ends_its_stream_and_not_the_requests(
    fleet: RunningFleet,
) -> None:
    _, decode = await fleet.pair(step_s=0.02)
    call = fleet.inference.Generate(request(60))
    running = asyncio.create_task(events_of(call))
    await until(lambda: bool(decode.running))
    decode.say(worker_pb2.StepReport(tokens=generation_pb2.TokenColumns(handles=list(decode.running))))
    events = await running
    assert tokens_of(events) == expected(60)
    assert finished_of(events).usage.attempts == 2
    assert (
        fleet.shell.metrics.registry.get_sample_value(f"{NAMESPACE}_loop_errors_total", {"where": "link"})
        == 1
    )
    await until(fleet.nothing_is_held)
