"""Clients that do not read, and clients that are many: nobody else is harmed, and what they held is freed."""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest

from baton.v1 import inference_pb2, inference_pb2_grpc
from baton.v1.generation_pb2 import SamplingParams, StopRules
from tests.router.conftest import RunningFleet, until
from tests.router.scripted_worker import token_at

pytestmark = pytest.mark.integration

PROMPT = (5, 6, 7, 8, 9)
NARROW = (("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0))
"""Of a connection whose window is soon full."""


def request(request_id: str, max_tokens: int, n: int = 1) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        request_id=request_id,
        tokens=inference_pb2.TokenInput(token_ids=PROMPT),
        stop=StopRules(max_tokens=max_tokens),
        sampling=SamplingParams(n=n, logprobs=1),
    )


async def test_a_client_that_never_reads_holds_nothing_for_ever_and_harms_no_neighbour(
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
        [session] = [one for one in shell.core.book.live.values() if one.request_id == "neighbour"]
        made = len(session.choices[0].token_ids)
        await until(lambda: len(received) > made)
        return not shell.core.is_running("", "silent")

    async with grpc.aio.insecure_channel(fleet.address, options=NARROW) as channel:
        silent = inference_pb2_grpc.InferenceServiceStub(channel).Generate(request("silent", 8000, n=8))
        await until(lambda: shell.core.is_running("", "silent"))
        neighbour = fleet.inference.Generate(request("neighbour", 8000))
        reading = asyncio.create_task(read(neighbour))
        await until(lambda: bool(received))
        await until(silent_is_given_up)
        assert received == [token_at(PROMPT, 0, index) for index in range(len(received))]
        neighbour.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await until(fleet.nothing_is_held)
        with pytest.raises(grpc.aio.AioRpcError, match="reads too slowly") as late:
            await read(silent)
        assert late.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
