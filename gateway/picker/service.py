"""`envoy.service.ext_proc.v3.ExternalProcessor`: a stream for each HTTP request of the proxy.

The decision needs the whole body, so that it can be quoted. How the proxy sends it says when it answers:

    FULL_DUPLEX_STREAMED  head, pieces, end ──▶ the head's answer, then the pieces themselves
    BUFFERED              head ──▶ go on; body ──▶ the answer
    other modes, no body  head ──▶ the answer, unquoted

Then the stream ends, and the proxy goes on without the picker: what gateways respond never comes here.

A response whose body is sent FULL_DUPLEX_STREAMED is the exception. Pieces that the proxy sends before it
learns of the end would be lost, so the picker stays until the response is complete, and sends back each part
as it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import grpc.aio

from baton.picker.v1 import ext_proc_pb2 as pb
from gateway.picker.convert import (
    FULL_DUPLEX,
    BodyModes,
    Request,
    Response,
    body_modes,
    decision_to_pb,
    head_from_pb,
    relayed_to_pb,
)
from gateway.picker.decision import NO_GATEWAY, Decision, Head, refusal
from gateway.picker.metrics import PickerMetrics
from gateway.picker.pool import Pool
from gateway.serving.fleet import Fleets

NAME = "envoy.service.ext_proc.v3.ExternalProcessor"


class PickerService:
    """Picks a gateway for each HTTP request, or responds to it."""

    def __init__(self, pool: Pool, fleets: Fleets, metrics: PickerMetrics, max_body_bytes: int) -> None:
        self._pool = pool
        self._fleets = fleets
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes

    def add_to(self, server: grpc.aio.Server) -> None:
        process = grpc.stream_stream_rpc_method_handler(
            self.process,
            request_deserializer=Request.FromString,
            response_serializer=Response.SerializeToString,
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, {"Process": process}),))

    async def process(
        self, requests: AsyncIterator[Request], context: grpc.aio.ServicerContext[Request, Response]
    ) -> AsyncIterator[Response]:
        """Respond to the parts of one HTTP request."""
        parts = aiter(requests)
        first = await anext(parts, None)
        if first is None:
            return
        if not first.HasField("request_headers"):
            kind = first.WhichOneof("request")
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"the first part is {kind}; accepted: request_headers (request_header_mode: SEND)",
            )
        head = head_from_pb(first)
        modes = body_modes(first)
        if modes.request == FULL_DUPLEX and not head.is_whole:
            responses = self._streamed(head, parts, modes)
        elif modes.request == pb.BODY_MODE_BUFFERED and not head.is_whole:
            responses = self._buffered(head, parts)
        else:
            responses = self._headless(head)
        async for response in responses:
            yield response
            if response.HasField("immediate_response"):
                return
        if modes.response == FULL_DUPLEX:
            async for part in parts:
                for response in relayed_to_pb(part, modes):
                    yield response

    async def _headless(self, head: Head) -> AsyncIterator[Response]:
        yield decision_to_pb(head, await self._decide(head, b""))

    async def _buffered(self, head: Head, parts: AsyncIterator[Request]) -> AsyncIterator[Response]:
        yield Response(request_headers=pb.HeadersResponse())  # the body decides
        part = await anext(parts, None)
        if part is not None:
            yield decision_to_pb(head, await self._decide(head, part.request_body.body), with_body=True)

    async def _streamed(
        self, head: Head, parts: AsyncIterator[Request], modes: BodyModes
    ) -> AsyncIterator[Response]:
        """Hold a body back until it is complete, or too large for a gateway, which then says so.

        The gateway may respond before the rest of such a body has come.
        """
        held: list[Request] = []
        is_complete, size = False, 0
        async for part in parts:
            held.append(part)
            size += len(part.request_body.body)
            is_complete = _ends(part)
            if is_complete or size > self._max_body_bytes:
                break
        body = b"".join(part.request_body.body for part in held) if is_complete else b""
        yield decision_to_pb(head, await self._decide(head, body))
        for part in held:
            for response in relayed_to_pb(part, modes):
                yield response
        while not is_complete and (next_part := await anext(parts, None)) is not None:
            is_complete = _ends(next_part)
            for response in relayed_to_pb(next_part, modes):
                yield response

    async def _decide(self, head: Head, body: bytes) -> Decision:
        decision: Decision = NO_GATEWAY
        if (endpoint := self._pool.pick(head.subset)) is not None:
            decision = await refusal(self._fleets, head, body) or endpoint
        self._metrics.decided(decision)
        return decision


def _ends(part: Request) -> bool:
    return part.HasField("request_trailers") or part.request_body.end_of_stream
