"""`envoy.service.ext_proc.v3.ExternalProcessor`: a stream for each HTTP request of the proxy.

The decision needs the whole body, so that it can be quoted. How the proxy sends it says when it answers:

    FULL_DUPLEX_STREAMED  head, pieces, end ──▶ the head's answer, then the pieces themselves
    BUFFERED              head ──▶ go on; body ──▶ the answer
    other modes, no body  head ──▶ the answer, unquoted

Then the stream ends, and the proxy goes on without the picker: what gateways respond never comes here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import grpc.aio

from baton.picker.v1 import ext_proc_pb2 as pb
from gateway.errors import Problem
from gateway.fleet import FleetClient
from gateway.picker.convert import (
    Request,
    Response,
    body_mode,
    head_from_pb,
    picked_to_pb,
    pieces_to_pb,
    problem_to_pb,
    relayed_to_pb,
    undecided_to_pb,
)
from gateway.picker.decision import NO_GATEWAY, Decision, Head, Picked
from gateway.picker.metrics import PickerMetrics
from gateway.picker.pool import Pool
from gateway.picker.refusals import refusal

NAME = "envoy.service.ext_proc.v3.ExternalProcessor"


class PickerService:
    """Picks a gateway for each HTTP request, or responds to it.

    With `relays_responses` the stream stays open until the response is complete, for proxies that take its
    end for an error.
    """

    def __init__(
        self,
        pool: Pool,
        fleet: FleetClient,
        metrics: PickerMetrics,
        max_body_bytes: int,
        *,
        relays_responses: bool = False,
    ) -> None:
        self._pool = pool
        self._fleet = fleet
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes
        self._relays_responses = relays_responses

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
        mode = pb.BODY_MODE_UNSPECIFIED if head.is_whole else body_mode(first)
        if mode == pb.BODY_MODE_FULL_DUPLEX_STREAMED:
            responses = self._streamed(head, parts)
        elif mode == pb.BODY_MODE_BUFFERED:
            responses = self._buffered(head, parts)
        else:
            responses = self._headless(head)
        async for response in responses:
            yield response
            if response.HasField("immediate_response"):
                return
        if self._relays_responses:
            replaces = first.protocol_config.response_body_mode == pb.BODY_MODE_FULL_DUPLEX_STREAMED
            async for part in parts:
                for response in relayed_to_pb(part, replaces=replaces):
                    yield response

    async def _headless(self, head: Head) -> AsyncIterator[Response]:
        yield _to_pb(head, await self._decide(head, b""))

    async def _buffered(self, head: Head, parts: AsyncIterator[Request]) -> AsyncIterator[Response]:
        yield undecided_to_pb()
        part = await anext(parts, None)
        if part is not None:
            yield _to_pb(head, await self._decide(head, part.request_body.body), with_body=True)

    async def _streamed(self, head: Head, parts: AsyncIterator[Request]) -> AsyncIterator[Response]:
        """Hold a body back until it is complete, or too large for a gateway, which then says so."""
        held: list[Request] = []
        is_complete, size = False, 0
        async for part in parts:
            held.append(part)
            size += len(part.request_body.body)
            is_complete = _ends(part)
            if is_complete or size > self._max_body_bytes:
                break
        body = b"".join(part.request_body.body for part in held) if is_complete else b""
        yield _to_pb(head, await self._decide(head, body))
        for part in held:
            for response in _passed_on(part):
                yield response
        while not is_complete and (next_part := await anext(parts, None)) is not None:
            is_complete = _ends(next_part)
            for response in _passed_on(next_part):
                yield response

    async def _decide(self, head: Head, body: bytes) -> Decision:
        decision: Decision = NO_GATEWAY
        if (endpoint := self._pool.pick(head.subset)) is not None:
            decision = await refusal(self._fleet, head, body) or Picked(endpoint)
        self._metrics.decided(decision)
        return decision


def _ends(part: Request) -> bool:
    return part.HasField("request_trailers") or part.request_body.end_of_stream


def _passed_on(part: Request) -> list[Response]:
    if part.HasField("request_body"):
        return pieces_to_pb(part.request_body)
    return relayed_to_pb(part, replaces=False)


def _to_pb(head: Head, decision: Decision, *, with_body: bool = False) -> Response:
    if isinstance(decision, Problem):
        return problem_to_pb(head, decision)
    return picked_to_pb(decision, with_body=with_body)
