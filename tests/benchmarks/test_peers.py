"""A comparison counts what arms serve, and tells what they do not."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from benchmarks.doors.arms import Arm, Run
from benchmarks.doors.plain import BadStream, PlainCaller
from benchmarks.peers.command import sections
from benchmarks.peers.loads import RATES, STREAMS, play

pytestmark = pytest.mark.asyncio(loop_scope="module")
STREAM = b"HTTP/1.1 200 OK\r\n\r\ndata: {}\n\ndata: %s\n\r\n0\r\n\r\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[str]:
    """A server that streams 2 tokens, and refuses what asks for another number in a wrong way."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        body = await reader.readexactly(length)
        if b'"max_tokens": 0' in body:
            writer.write(b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 2\r\n\r\n{}")
        else:
            writer.write(STREAM % b'{"usage": {"completion_tokens": 2}}')
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        yield "{}:{}".format(*listening.sockets[0].getsockname())


@pytest.mark.parametrize("num_tokens", [0, 3])
async def test_a_stream_that_is_not_whole_is_an_error(server: str, num_tokens: int) -> None:
    async with PlainCaller.connected(server) as caller:
        with pytest.raises(BadStream):
            await caller.play({"prompt": "a", "max_tokens": num_tokens})


async def test_a_whole_stream_has_a_time_to_its_first_token(server: str) -> None:
    async with PlainCaller.connected(server) as caller:
        assert 0 < await caller.play({"prompt": "a", "max_tokens": 2}) < 60


async def test_failures_are_counted_apart() -> None:
    async def serve(prompt: str, num_tokens: int) -> float:
        if len(set(prompt.split())) < 8:
            raise BadStream("refused")
        return 0.5

    run = await play(Arm("any", {"self": os.getpid()}, serve), STREAMS[1], seed=1)
    assert len(run.ttft_ms) + len(run.failed) == run.num_requests == STREAMS[1].requests
    assert run.failed
    assert set(run.ttft_ms) == {500.0}
    assert run.memory_mb > 1


async def test_costs_are_by_token_for_streams_and_by_request_for_requests() -> None:
    run = Run(cpu_s={"router": 0.4, "gateway": 0.2}, ttft_ms=[1.0, 2.0])
    assert STREAMS[0].cost(run) == {"router": pytest.approx(500), "gateway": pytest.approx(250)}
    assert RATES[0].cost(run) == {"router": pytest.approx(200), "gateway": pytest.approx(100)}


async def test_each_arm_has_a_row_with_the_cost_of_each_process() -> None:
    both = Run(cpu_s={"gateway": 0.004, "router": 0.008}, wall_s=2.0, ttft_ms=[7.0])
    alone = Run(cpu_s={"frontend": 0.002}, wall_s=1.0, failed=["x"])
    found = {STREAMS[0]: {"Baton, HTTP": [both], "Dynamo": [alone]}, RATES[0]: {"Dynamo": [alone]}}
    streams, requests = sections([STREAMS[0], RATES[0]], found, "the note")
    assert "30; gateway 10; router 20 | 7 | 7 | 200 | 0 | 0 |" in streams.markdown()
    assert "| Dynamo | 5 | - | - | - | - | 1 |" in streams.markdown()
    assert requests.data["loads"][RATES[0].name]["Dynamo"][0]["failed"] == ["x"]
