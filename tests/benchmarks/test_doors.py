"""A request is recorded alike whichever door it takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from baton import Slo
from benchmarks.doors.http import HttpError, OpenAIClient
from benchmarks.doors.metrics import summarise
from benchmarks.doors.sending import Job
from benchmarks.fleets.gateway import HERE, started
from benchmarks.fleets.load import closed_loop
from benchmarks.fleets.targets import Target, reached
from tests.fleets import NewFleet

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

PROMPT = list(range(3, 40))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def doors(new_fleet: NewFleet) -> AsyncIterator[list[Target]]:
    """The doors of one fleet: gRPC, then HTTP."""
    async with (
        new_fleet(gateways=1) as fleet,
        reached(fleet.router_addresses, "grpc") as grpc,
        reached(fleet.router_addresses, "openai", gateway=fleet.gateway_urls[0]) as openai,
    ):
        yield [grpc, openai]


async def test_each_token_and_the_promise_are_recorded(doors: list[Target]) -> None:
    job = Job(PROMPT, 24, Slo(ttft_ms=60_000, tpot_ms=10_000, itl_ms=20_000))
    for door in doors:
        record = await door.send(job)
        assert record.completed, record.error
        assert record.good
        assert len(record.token_times) == job.output_tokens
        assert record.sent_at < record.token_times[0] <= record.token_times[-1] <= (record.finished_at or 0)
        assert 0 < (record.ttft_s or 0) <= record.token_times[0] - record.sent_at
        assert 0 < (record.tpot_s or 0) <= (record.max_gap_s or 0)


async def test_refusals_are_no_failures(doors: list[Target]) -> None:
    impossible, served = Job(PROMPT, 4, Slo(ttft_ms=1)), Job(PROMPT, 4, Slo(ttft_ms=60_000))
    for door in doors:
        summary = summarise(await closed_loop(door.send, [impossible, served] * 4, 4), warmup_share=0.0)
        assert (summary.refused, summary.completed, summary.failed) == (4, 4, 0)
        assert summary.good_share == 0.5
        assert summary.refusal is not None


async def test_what_is_wrong_is_a_failure_with_its_reason(doors: list[Target]) -> None:
    for door in doors:
        record = await door.send(Job([door.vocab_size], 4))
        assert not record.completed
        assert record.refused_after_s is None
        assert str(door.vocab_size) in record.error


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (b'data: {"choices": []}\n\n', "without"),
        (b'data: {"error": {"message": "gone", "code": "lost", "param": null}}\n\n', "gone"),
        (b"", "without"),
    ],
)
async def test_a_stream_that_is_cut_is_an_error(told: bytes, reason: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n: queued\n\n" + told)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    async with server, OpenAIClient(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(HttpError, match=reason):
            assert [chunk async for chunk in client.completion({"prompt": "x"})] == []


async def test_nobody_at_the_door_is_an_error() -> None:
    async with OpenAIClient("http://127.0.0.1:1") as client:
        with pytest.raises(HttpError, match="ConnectError") as refused:
            await anext(client.completion({"prompt": "x"}))
    assert refused.value.status == 0


async def test_the_gateway_of_this_checkout_can_be_measured() -> None:
    async with started("this", HERE, ["127.0.0.1:1"]) as door:
        assert door.cpu_s() > 0
