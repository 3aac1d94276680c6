"""WorkerService: one long-lived stream to each router."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Never

import grpc

from baton.worker.v1 import worker_pb2 as pb
from baton.worker.v1 import worker_pb2_grpc as pb_grpc
from runtime.rpc.numbering import Incoming, OutOfOrder
from runtime.state.records import WorkerRecord
from scheduling.cost_model import CostModel
from worker.config import WorkerConfig
from worker.costs import Costs
from worker.engine.engine import Computing
from worker.errors import MalformedCommandError
from worker.streams.convert import (
    command_from_pb,
    heartbeat_to_pb,
    report_to_pb,
    traceparent_from_pb,
    welcome_to_pb,
)
from worker.streams.hub import Hub
from worker.streams.probes import ProbedStream, ProbeResponder
from worker.streams.routers import MAX_OUTBOUND, RouterSession

HEARTBEAT_S = 0.2
"""Seconds between heartbeats: routers notice a silence of less than a second."""

Context = grpc.aio.ServicerContext[pb.WorkRequest, pb.WorkResponse]


class _Stream:
    """Numbers what goes to one router, and checks the numbers of what comes from it."""

    def __init__(self, context: Context, probed: ProbedStream) -> None:
        self.context = context
        self.probed = probed
        self._incoming = Incoming()

    def take(self, request: pb.WorkRequest) -> None:
        self._incoming.take(request.number)
        self.probed.taken = self._incoming.taken

    async def write(self, response: pb.WorkResponse) -> None:
        response.number, response.taken = self.probed.advance(), self._incoming.taken
        await self.context.write(response)


class WorkerService(pb_grpc.WorkerServiceServicer):
    """Serves one stream to each router; `step_s` returns the duration of the step under way, or 0."""

    def __init__(
        self,
        hub: Hub,
        record: WorkerRecord,
        config: WorkerConfig,
        computing: Computing,
        costs: Costs,
        step_s: Callable[[], float],
        probes: ProbeResponder,
    ) -> None:
        self._hub = hub
        self._probes = probes
        self._step_s = step_s
        self._record = record
        self._config = config
        self._computing = computing
        self._costs = costs

    def add_to(self, server: grpc.aio.Server) -> str:
        """Register the service; return its full name, for reflection."""
        pb_grpc.add_WorkerServiceServicer_to_server(self, server)
        return pb.DESCRIPTOR.services_by_name["WorkerService"].full_name

    # Written through the context, not yielded: so a stream that breaks ends this coroutine at once.
    async def Work(  # type: ignore[override]
        self, request_iterator: AsyncIterator[pb.WorkRequest], context: Context
    ) -> None:
        first = await anext(request_iterator, pb.WorkRequest())
        if first.WhichOneof("command") != "hello":
            await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "the first command must be hello")
        stream = _Stream(context, self._probes.open())
        session = self._hub.connect(first.hello.router_id)
        try:
            known = self._costs.model
            stream.take(first)
            draining = self._hub.draining.is_set()
            await stream.write(
                welcome_to_pb(
                    self._record,
                    self._config,
                    self._computing,
                    known,
                    self._hub.load,
                    stream.probed,
                    draining=draining,
                )
            )
            await self._serve(session, known, request_iterator, stream)
        except OutOfOrder as error:
            await _refuse(context, grpc.StatusCode.DATA_LOSS, str(error))
        finally:
            self._probes.close(stream.probed)
            self._hub.disconnect(session)

    async def _serve(
        self,
        session: RouterSession,
        known: CostModel,
        requests: AsyncIterator[pb.WorkRequest],
        stream: _Stream,
    ) -> None:
        """Serve until the router hangs up or falls behind, or this worker closes the session."""
        reading = asyncio.create_task(self._read(session, requests, stream))
        writing = asyncio.create_task(self._write(session, known, stream))
        falling_behind = asyncio.create_task(session.overflowed.wait())
        tasks: set[asyncio.Task[Any]] = {reading, writing, falling_behind}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if falling_behind in done:
            message = f"{MAX_OUTBOUND} reports wait to be read; read them as they come"
            await _refuse(stream.context, grpc.StatusCode.RESOURCE_EXHAUSTED, message)
        for task in done:
            task.result()

    async def _read(
        self, session: RouterSession, requests: AsyncIterator[pb.WorkRequest], stream: _Stream
    ) -> None:
        async for message in requests:
            stream.take(message)
            try:
                self._hub.apply(session, command_from_pb(message), traceparent_from_pb(message))
            except MalformedCommandError as error:
                self._hub.refuse(session, error.handle, str(error))

    async def _write(self, session: RouterSession, known: CostModel, stream: _Stream) -> None:
        """Write reports and heartbeats. A report includes the costs if they differ from the `known` ones."""
        while not session.is_finished:
            report = await session.take(HEARTBEAT_S)
            if report is not None:
                cost = self._costs.model
                changed = None if cost is known else cost
                known = cost
                await stream.write(report_to_pb(report, draining=self._hub.draining.is_set(), cost=changed))
            elif not session.is_finished:
                # No step delays a heartbeat, since it comes from the event loop.
                draining = self._hub.draining.is_set()
                await stream.write(heartbeat_to_pb(self._hub.load, self._step_s(), draining=draining))


async def _refuse(context: Context, code: grpc.StatusCode, message: str) -> Never:
    await context.abort(code, message)
    raise AssertionError("abort returned")
