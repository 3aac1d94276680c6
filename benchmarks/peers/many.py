"""Baton over one GenerateMany call, which carries the generations of all requests."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Self

import grpc.aio

from baton import Sampling, Slo, SloClass, Stop
from baton.v1 import inference_pb2, inference_pb2_grpc
from baton.wire.convert import request_to_pb
from benchmarks.fleets.doors.plain import BadStream


@dataclass(slots=True, eq=False)
class _Generation:
    ended: asyncio.Future[bytes]
    """Has the status that ended it; empty after Finished."""
    num_tokens: int = 0
    first_at: float | None = None


class ManyCaller:
    """One call."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._call: Any = inference_pb2_grpc.InferenceServiceStub(self._channel).GenerateMany()
        self._running: dict[int, _Generation] = {}
        self._last_id = 0
        self._writing = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._call.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._channel.close()

    async def play(self, prompt: str, num_tokens: int) -> float:
        """Stream a generation; return the seconds to its first token."""
        request = request_to_pb(
            prompt,
            Sampling(temperature=0),
            Stop(max_tokens=num_tokens, ignore_eos=True),
            Slo(slo_class=SloClass.STANDARD),
        )
        began = time.perf_counter()
        self._last_id += 1
        generation_id = self._last_id
        generation = _Generation(asyncio.get_running_loop().create_future())
        self._running[generation_id] = generation
        command = inference_pb2.GenerateManyRequest(id=generation_id, generate=request)
        async with self._writing:
            await self._call.write(command)
        status = await generation.ended
        del self._running[generation_id]
        if status or generation.first_at is None or generation.num_tokens != num_tokens:
            raise BadStream(f"{generation.num_tokens} tokens of {num_tokens} came, and the status {status!r}")
        return generation.first_at - began

    async def _read(self) -> None:
        try:
            async for response in self._call:
                for row, count in zip(response.tokens.ids, response.tokens.num_tokens, strict=True):
                    generation = self._running[row]
                    generation.num_tokens += count
                    generation.first_at = generation.first_at or time.perf_counter()
                for event in response.events:
                    if event.status or event.generation.HasField("finished"):
                        self._running[event.id].ended.set_result(event.status)
        finally:
            for generation in self._running.values():
                if not generation.ended.done():
                    generation.ended.set_exception(BadStream("the call ended"))
