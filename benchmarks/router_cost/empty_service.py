"""A server that sends what a router sends to its clients, and does nothing else: the cost of gRPC itself.

    python -m benchmarks.router_cost.empty_service

It ignores prompts. Every 10 ms each stream gets its next token, as if a worker had reported a step.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import grpc.aio
import uvloop

from baton.v1 import generation_pb2, inference_pb2, inference_pb2_grpc
from runtime.rpc.handlers import Context

STEP_S = 0.01
ACCEPTED = inference_pb2.Accepted(
    request_id="0123456789abcdef0123456789abcdef",
    promise=inference_pb2.LatencyPromise(predicted_ttft_ms=15.5, predicted_tpot_ms=5.5),
    seed=1 << 62,
    prompt_tokens=50,
    fingerprint="0123456789abcdef",
)
CHOICE_FINISHED = inference_pb2.ChoiceFinished(reason=generation_pb2.FINISH_REASON_LENGTH, output_tokens=2)
FINISHED = inference_pb2.Finished(
    usage=inference_pb2.Usage(prompt_tokens=50, output_tokens=2, attempts=1),
    promise=ACCEPTED.promise,
    delivery=inference_pb2.Delivery(ttft_ms=15.5, tpot_ms=5.5, max_gap_ms=5.5, e2e_ms=21.5),
    split=inference_pb2.TimeSplit(queue_ms=1.5, prefill_ms=12.5, handoff_ms=1.5, decode_ms=5.5),
)


class Running(NamedTuple):
    """The server's process, and where it listens."""

    pid: int
    address: str


@asynccontextmanager
async def empty_server() -> AsyncIterator[Running]:
    """Run the server in a process of its own while the block lasts."""
    command = (sys.executable, "-m", "benchmarks.router_cost.empty_service")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None, "it is a pipe"
        yield Running(process.pid, f"127.0.0.1:{int(await process.stdout.readline())}")
    finally:
        process.kill()
        await process.wait()


class _Empty(inference_pb2_grpc.InferenceServiceServicer):
    def __init__(self) -> None:
        self._step = asyncio.Event()

    async def run(self) -> None:
        """Make steps until cancelled."""
        while True:
            await asyncio.sleep(STEP_S)
            ended, self._step = self._step, asyncio.Event()
            ended.set()

    async def Generate(  # type: ignore[override]  # grpc.aio also takes a coroutine that writes
        self, request: inference_pb2.GenerateRequest, context: Context
    ) -> None:
        event = inference_pb2.GenerationEvent
        await context.write(inference_pb2.GenerateResponse(event=event(accepted=ACCEPTED)))
        for index in range(request.stop.max_tokens):
            await self._step.wait()
            response = inference_pb2.GenerateResponse()
            response.event.tokens.first_index = index
            response.event.tokens.token_ids.append(1000 + index)
            response.event.tokens.text = " name"
            await context.write(response)
        for last in (event(choice_finished=CHOICE_FINISHED), event(finished=FINISHED)):
            await context.write(inference_pb2.GenerateResponse(event=last))


async def _serve() -> None:
    server = grpc.aio.server()
    empty = _Empty()  # type: ignore[abstract]  # gRPC refuses the calls that it does not have
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(empty, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await empty.run()


if __name__ == "__main__":
    uvloop.run(_serve())
