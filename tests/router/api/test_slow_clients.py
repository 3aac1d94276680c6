"""Clients that do not read, and clients that are many: nobody else is harmed, and what they held is freed."""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest

from baton.v1 import inference_pb2_grpc
from baton.v1.generation_pb2 import SamplingParams
from tests.router.calls import expected, request
from tests.router.conftest import RunningFleet, until

pytestmark = pytest.mark.integration

NARROW = (("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0))
"""Options of a connection whose window is soon full."""
MANY = SamplingParams(n=8, logprobs=1)
"""Choices whose tokens soon fill it."""


async def test_a_client_that_never_reads_harms_no_neighbour(
    fleet: RunningFleet,
) -> None:
    await fleet.pair(num_blocks=100_000, step_s=0.002)
    shell = fleet.shell
    shell.max_pending_tokens = 1 << 30
    received: list[int] = []

    async def read(call: grpc.aio.UnaryStreamCall) -> None:
        async for response in call:
            received.extend(response.event.tokens.token_ids)

    async def silent_is_given_up() -> bool:
        """After all that waited for the neighbour has been taken, as in the time between two such looks."""
        shell.end_stalled()
        [session] = [
            entry for entry in shell.core.state.live.values() if entry.request.request_id == "neighbour"
        ]
        made = len(session.choices[0].token_ids)
        await until(lambda: len(received) > made)
        return not shell.core.is_running("", "silent")

    async with grpc.aio.insecure_channel(fleet.address, options=NARROW) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        silent = stub.Generate(request(8000, "silent", sampling=MANY))
        await until(lambda: shell.core.is_running("", "silent"))
        sampling = SamplingParams(logprobs=1)
        neighbour = fleet.inference.Generate(request(8000, "neighbour", sampling=sampling))
        reading = asyncio.create_task(read(neighbour))
        await until(lambda: bool(received))
        await until(silent_is_given_up)
        assert received == expected(len(received))
        neighbour.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await until(fleet.nothing_is_held)
        with pytest.raises(grpc.aio.AioRpcError, match="reads too slowly") as late:
            await read(silent)
        assert late.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_client_that_does_not_read_is_cut_off_and_its_work_freed(fleet: RunningFleet) -> None:
    fleet.shell.max_pending_tokens = 64
    _, decode = await fleet.pair(num_blocks=100_000)
    async with grpc.aio.insecure_channel(fleet.address, options=NARROW) as channel:
        call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(request(8000, sampling=MANY))
        await call.read()
        await until(lambda: any(c.WhichOneof("command") == "receive" for c in decode.commands))
        await until(lambda: fleet.shell.core.state.live == {} and not decode.running)
        await until(fleet.nothing_is_held)
