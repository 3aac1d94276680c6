"""Prefill and decode workers as processes, told what a router would tell them."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from baton.worker.v1 import worker_pb2 as pb
from scheduling.request import FinishReason
from tests.model_zoo import stock_generate
from tests.worker.client import WorkClient, spec_of
from tests.worker.conftest import Pair, WorkerProcess, Workshop

pytestmark = pytest.mark.integration

PROMPT = [3 + i % 90 for i in range(75)]


async def relay(
    prefill: WorkClient, decode: WorkClient, source: str, prompt: list[int], max_tokens: int
) -> tuple[int, int]:
    """Both halves of one request, as a router dispatches them; (prefill's handle, decode's handle)."""
    spec = spec_of(
        prompt,
        source=prefill.welcome.incarnation,
        target=decode.welcome.incarnation,
        max_tokens=max_tokens,
    )
    return await prefill.prefill(spec), await decode.receive(spec, source)


@pytest.mark.parametrize("transport", ["shm", "grpc"])
async def test_greedy_tokens_are_stocks_over_both_transports(
    transport: str, pair: Pair, workshop: Workshop, model: Path
) -> None:
    source = pair.source
    target = pair.target if transport == "shm" else workshop.start("decode", "--transport=grpc")
    before = await metrics_of(source), await metrics_of(target)
    prompts = [PROMPT[: 10 + 13 * number] for number in range(5)]
    async with WorkClient(source.address) as prefill, WorkClient(target.address) as decode:
        handles = [await relay(prefill, decode, source.address, prompt, 12) for prompt in prompts]
        await decode.until_finished(*(handle for _, handle in handles))
        for prompt, (first, second) in zip(prompts, handles, strict=True):
            heard, expected = decode.heard[second], stock_generate(model, prompt, 12).tokens
            assert heard.token_ids[0] == expected
            assert heard.indexes[0] == list(range(12))
            assert heard.finished[0] == FinishReason.LENGTH
            first_token = prefill.heard[first]
            assert first_token.token_ids[0] == expected[:1]
            assert heard.text[0].startswith(first_token.text[0])
            assert heard.logprobs[0][0] == pytest.approx(first_token.logprobs[0][0])
        await asyncio.gather(prefill.until_all_free(), decode.until_all_free())
    sent, received = await metrics_of(source) - before[0], await metrics_of(target) - before[1]
    assert received[f'baton_kv_bytes_total{{transport="{transport}"}}'] > 0
    assert received['baton_kv_handoffs_total{outcome="completed"}'] == 5
    assert received["baton_kv_blocks_corrupt_total"] == 0
    assert sent['baton_kv_handoffs_total{outcome="acknowledged"}'] == 5


async def test_a_decode_worker_can_do_it_alone(pair: Pair, model: Path) -> None:
    worker = pair.target
    async with WorkClient(worker.address) as client:
        prompt = PROMPT[::-1]
        handle = await client.decode(spec_of(prompt, target=client.welcome.incarnation, max_tokens=6))
        await client.until_finished(handle)
        assert client.heard[handle].token_ids[0] == stock_generate(model, prompt, 6).tokens
        assert client.heard[handle].cached_tokens == 0
        await client.until_all_free()


async def test_a_prefix_the_decode_worker_holds_is_not_sent(pair: Pair, model: Path) -> None:
    source, target = pair.source, pair.target
    before, start = await metrics_of(target), [90 - token for token in PROMPT]
    async with WorkClient(source.address) as prefill, WorkClient(target.address) as decode:
        for prompt in (start, [*start, 5, 6, 7]):
            _, handle = await relay(prefill, decode, source.address, prompt, 4)
            await decode.until_finished(handle)
            assert decode.heard[handle].token_ids[0] == stock_generate(model, prompt, 4).tokens
        await decode.until_all_free()
    assert (await metrics_of(target) - before)["baton_kv_blocks_skipped_total"] == 4


async def test_choices_share_one_handoff(pair: Pair) -> None:
    source, target = pair.source, pair.target
    async with WorkClient(source.address) as prefill, WorkClient(target.address) as decode:
        here, there = prefill.welcome.incarnation, decode.welcome.incarnation
        spec = spec_of(PROMPT, source=here, target=there, choices=(0, 1, 2), temperature=1.0, max_tokens=5)
        await prefill.prefill(spec)
        handle = await decode.receive(spec, source.address)
        alone = spec_of(
            PROMPT, target=decode.welcome.incarnation, choices=(0, 1, 2), temperature=1.0, max_tokens=5
        )
        reference = await decode.decode(alone)
        await decode.until_finished(handle, reference, choices=3)
        assert decode.heard[handle].token_ids == decode.heard[reference].token_ids
        assert len({tuple(tokens) for tokens in decode.heard[handle].token_ids.values()}) > 1
        await asyncio.gather(prefill.until_all_free(), decode.until_all_free())


async def test_delivered_tokens_are_prefilled_and_go_on(pair: Pair, model: Path) -> None:
    source, target = pair.source, pair.target
    expected = stock_generate(model, PROMPT, 10).tokens
    async with WorkClient(source.address) as prefill, WorkClient(target.address) as decode:
        here, there = prefill.welcome.incarnation, decode.welcome.incarnation
        spec = spec_of(PROMPT, source=here, target=there, output=expected[:4], attempt=1, max_tokens=10)
        await prefill.prefill(spec)
        handle = await decode.receive(spec, source.address)
        await decode.until_finished(handle)
        assert decode.heard[handle].token_ids[0] == expected[4:]
        assert decode.heard[handle].indexes[0] == list(range(4, 10))


async def test_a_one_token_request_needs_no_decode_worker(
    pair: Pair,
) -> None:
    source, target = pair.source, pair.target
    async with WorkClient(source.address) as prefill, WorkClient(target.address) as decode:
        first, second = await relay(prefill, decode, source.address, PROMPT, 1)
        await prefill.until_finished(first)
        assert prefill.heard[first].finished == {0: FinishReason.LENGTH}
        await decode.until(lambda: bool(decode.released))
        await asyncio.gather(prefill.until_all_free(), decode.until_all_free())
        assert prefill.heard[first].failure is None
        assert decode.heard[second].failure is None
        assert decode.released == [second], "its router would wait for it if the other report were lost"


async def test_cancelling_frees_everything_in_every_phase(pair: Pair) -> None:
    source, target = pair.source, pair.target
    async with WorkClient(source.address) as prefill, WorkClient(target.address) as decode:
        here, there = prefill.welcome.incarnation, decode.welcome.incarnation
        # Receiving, from a source that never hears of it.
        waiting = await decode.receive(spec_of(PROMPT, source=here, target=there), source.address)
        await decode.until(lambda: decode.loads[-1].waiting == 1)
        await decode.cancel(waiting)
        await decode.until_all_free()
        # Prefilled and held, for a receiver that never comes.
        held = await prefill.prefill(spec_of(PROMPT, source=here, target=there))
        await prefill.until(lambda: prefill.heard[held].cached_tokens is not None)
        await prefill.cancel(held)
        await prefill.until_all_free()
        # Decoding.
        _, running = await relay(prefill, decode, source.address, PROMPT, 400)
        await decode.until(lambda: len(decode.heard[running].token_ids[0]) > 3)
        await decode.cancel(running)
        await asyncio.gather(prefill.until_all_free(), decode.until_all_free())
        # At once, whatever phase that is.
        first, second = await relay(prefill, decode, source.address, PROMPT, 400)
        await prefill.cancel(first)
        await decode.cancel(second)
        await asyncio.gather(prefill.until_all_free(), decode.until_all_free())
        assert decode.loads[-1].running == decode.loads[-1].waiting == 0


async def test_a_broken_stream_frees_what_came_over_it_and_nothing_else(pair: Pair, model: Path) -> None:
    worker = pair.target
    async with WorkClient(worker.address) as staying:
        target = staying.welcome.incarnation
        async with WorkClient(worker.address, "router-leaving") as leaving:
            doomed = await leaving.decode(spec_of(PROMPT, target=target, max_tokens=400))
            kept = await staying.decode(spec_of(PROMPT[:20], target=target, max_tokens=30))
            await leaving.until(lambda: len(leaving.heard[doomed].token_ids[0]) > 2)
        await staying.until_finished(kept)
        assert staying.heard[kept].token_ids[0] == stock_generate(model, PROMPT[:20], 30).tokens
        await staying.until_all_free()
        assert set(staying.heard) == {kept}, "another router's rows came here"


async def test_a_killed_source_fails_the_receive_and_frees_its_blocks(pair: Pair, workshop: Workshop) -> None:
    source, target = workshop.start("prefill"), pair.target
    async with WorkClient(target.address) as decode:
        async with WorkClient(source.address) as prefill:
            incarnation = prefill.welcome.incarnation
        spec = spec_of(PROMPT, source=incarnation, target=decode.welcome.incarnation)
        handle = await decode.receive(spec, source.address)
        await decode.until(lambda: decode.loads[-1].waiting == 1)
        source.kill()
        await decode.until_finished(handle)
        failure = decode.heard[handle].failure
        assert failure is not None
        assert failure.reason == pb.FAILURE_REASON_HANDOFF
        await decode.until_all_free()


async def test_heartbeats_come_when_nothing_else_does(pair: Pair) -> None:
    worker = pair.target
    async with WorkClient(worker.address) as client:
        await client.until(lambda: client.num_heartbeats >= 2)
        assert client.loads[-1].free_blocks == 64


async def test_sigterm_cuts_no_running_sequence_short(pair: Pair, workshop: Workshop, model: Path) -> None:
    source, worker = pair.source, workshop.start("decode", "--drain-s=600")
    async with WorkClient(source.address) as prefill, WorkClient(worker.address) as client:
        here, target = prefill.welcome.incarnation, client.welcome.incarnation
        handle = await client.decode(spec_of(PROMPT, target=target, max_tokens=60))
        # From a source that never hears of it: however soon the other ends, the worker is not drained before.
        waiting = await client.receive(spec_of(PROMPT, source=here, target=target), source.address)
        await client.until(
            lambda: len(client.heard[handle].token_ids[0]) > 0 and client.loads[-1].waiting == 1
        )
        ending = asyncio.create_task(worker.terminate())
        await client.until(lambda: client.loads[-1].draining)
        late = await client.decode(spec_of(PROMPT, target=target))
        await client.until_finished(handle, late)
        assert client.heard[handle].token_ids[0] == stock_generate(model, PROMPT, 60).tokens
        failure = client.heard[late].failure
        assert failure is not None
        assert "draining" in failure.message
        await client.cancel(waiting)
        assert await ending == 0


async def test_prompts_do_not_reach_the_logs(workshop: Workshop) -> None:
    worker = workshop.start("decode", "--log-level=debug")
    async with WorkClient(worker.address) as client:
        target = client.welcome.incarnation
        handle = await client.decode(spec_of(PROMPT, target=target))
        await client.until_finished(handle)
        refused = await client.decode(spec_of([3, 999_999], target=target))
        await client.until_finished(refused)
    assert await worker.terminate() == 0
    lines = [json.loads(line) for line in worker.log.read_text().splitlines()]
    assert "router_connected" in {line["event"] for line in lines}
    assert not any(str(PROMPT[:3])[1:-1] in json.dumps(line) for line in lines)


async def metrics_of(worker: WorkerProcess) -> Counter[str]:
    host, _, port = worker.metrics.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
    answer = (await reader.read()).decode()
    writer.close()
    lines = [line.rsplit(" ", 1) for line in answer.split("\r\n\r\n", 1)[1].splitlines() if line[0] != "#"]
    return Counter({name: round(float(value)) for name, value in lines})
