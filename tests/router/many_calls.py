"""A client of GenerateMany: what each generation on a call hears."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any, TypeAlias

import grpc.aio
from google.rpc import status_pb2

from baton.v1 import inference_pb2, inference_pb2_grpc
from baton.wire.rows import event_of, parts_of
from baton.wire.transport import Row
from tests.router.conftest import until

Heard: TypeAlias = "inference_pb2.GenerationEvent | status_pb2.Status"


class ManyClient:
    """One call, which is read from its beginning on."""

    def __init__(
        self, stub: inference_pb2_grpc.InferenceServiceAsyncStub, metadata: Any = None, *, reads: bool = True
    ) -> None:
        self.call: Any = stub.GenerateMany(metadata=metadata)
        self.heard: dict[int, list[Heard]] = defaultdict(list)
        self.num_messages = 0
        self.reading = asyncio.create_task(self.read()) if reads else None

    async def read(self) -> None:
        async for response in self.call:
            self.num_messages += 1
            for generation_id, part in parts_of(response):
                heard = event_of(part) if isinstance(part, Row) else part
                self.heard[generation_id].append(
                    heard.event if isinstance(heard, inference_pb2.GenerateResponse) else heard
                )

    async def send(self, generation_id: int, **command: Any) -> None:
        await self.call.write(inference_pb2.GenerateManyRequest(id=generation_id, **command))

    async def done(self) -> None:
        """End this side of the call, and wait until the router has ended its own."""
        await self.call.done_writing()
        assert self.reading is not None
        await self.reading

    def events(self, generation_id: int) -> list[inference_pb2.GenerationEvent]:
        found = self.heard[generation_id]
        assert not any(isinstance(event, status_pb2.Status) for event in found), found
        return [event for event in found if isinstance(event, inference_pb2.GenerationEvent)]

    def status(self, generation_id: int) -> status_pb2.Status:
        (status,) = self.heard[generation_id]
        assert isinstance(status, status_pb2.Status), status
        return status

    async def error(self) -> grpc.aio.AioRpcError:
        """Return the error that ends the call."""
        assert self.reading is not None
        (error,) = await asyncio.gather(self.reading, return_exceptions=True)
        assert isinstance(error, grpc.aio.AioRpcError), error
        return error

    async def heard_tokens(self, generation_id: int) -> None:
        """Wait for a generation's first tokens."""
        await until(lambda: len(self.heard[generation_id]) > 2)
