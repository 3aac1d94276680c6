"""Asks an endpoint picker as a proxy asks it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # ships no annotations

from baton.picker.v1 import ext_proc_pb2 as pb
from baton.v1 import inference_pb2
from gateway.picker.convert import FULL_DUPLEX
from gateway.picker.service import NAME
from tests.baton.scripted_service import ScriptedRouter

ENDPOINT = "x-gateway-destination-endpoint"
TEXT = "/v1/completions"
MODEL = inference_pb2.ListModelsResponse(
    models=[
        inference_pb2.Model(
            name="m", max_context_tokens=100, vocab_size=10, fingerprint="f", adapters=["red"]
        )
    ]
)
DUPLEX = pb.ProtocolConfiguration(request_body_mode=FULL_DUPLEX, response_body_mode=FULL_DUPLEX)


Call = grpc.aio.StreamStreamCall[Any, pb.ProcessingResponse]


@dataclass(frozen=True)
class Asking:
    """A picker that is asked, and what is behind it."""

    router: ScriptedRouter
    gateways: tuple[str, ...]
    channel: grpc.aio.Channel

    def call(self) -> Call:
        """Begin a stream, as a proxy does for each HTTP request."""
        return self.channel.stream_stream(
            f"/{NAME}/Process",
            request_serializer=pb.ProcessingRequest.SerializeToString,
            response_deserializer=pb.ProcessingResponse.FromString,
        )()

    async def ask(self, *parts: pb.ProcessingRequest, leaves: bool = True) -> list[pb.ProcessingResponse]:
        """Send the parts, and return all responses. Unless the proxy `leaves`, the picker ends the stream."""
        call = self.call()
        for part in parts:
            await call.write(part)
        if leaves:
            await call.done_writing()
        return [response async for response in call]

    async def post(self, body: Any, path: str = TEXT, **headers: Any) -> list[pb.ProcessingResponse]:
        return await self.ask(head(path, **headers), piece(json.dumps(body).encode(), ends=True))


async def exchange(call: Call, part: pb.ProcessingRequest) -> pb.ProcessingResponse:
    """Send a part that has one response, and return it."""
    await call.write(part)
    response = await call.read()
    assert isinstance(response, pb.ProcessingResponse)
    return response


def head(
    path: str = TEXT,
    *,
    method: str = "POST",
    subset: Sequence[str] | None = None,
    config: pb.ProtocolConfiguration | None = DUPLEX,
    **headers: str,
) -> pb.ProcessingRequest:
    fields = {":method": method, ":path": path} | {
        name.replace("_", "-"): text for name, text in headers.items()
    }
    part = pb.ProcessingRequest(
        request_headers=pb.HttpHeaders(
            headers=pb.HeaderMap(
                headers=[pb.HeaderValue(key=key, raw_value=text.encode()) for key, text in fields.items()]
            ),
            end_of_stream=method == "GET",
        ),
        protocol_config=config,
    )
    if subset is not None:
        part.metadata_context.filter_metadata["envoy.lb.subset_hint"].update({f"{ENDPOINT}-subset": subset})
    return part


def piece(body: bytes, *, ends: bool = False) -> pb.ProcessingRequest:
    return pb.ProcessingRequest(request_body=pb.HttpBody(body=body, end_of_stream=ends))


def endpoint_of(response: pb.ProcessingResponse) -> str:
    """Return the gateway that a response names, in the header and in the metadata alike."""
    kind = response.WhichOneof("response")
    assert kind in {"request_headers", "request_body"}
    [option] = getattr(response, kind).response.header_mutation.set_headers
    named = option.header.raw_value.decode()
    assert (option.header.key, option.append_action) == (ENDPOINT, 2)
    namespace: Any = response.dynamic_metadata["envoy.lb"]
    assert namespace[ENDPOINT] == named
    return named


def passed_on(responses: Sequence[pb.ProcessingResponse]) -> tuple[bytes, list[bool]]:
    """Return the body that the proxy sends on, and which of its pieces says that it is the last."""
    pieces = [response.request_body.response.body_mutation.streamed_response for response in responses]
    return b"".join(part.body for part in pieces), [part.end_of_stream for part in pieces]


async def serves(channel: grpc.aio.Channel, name: str = NAME) -> bool:
    found = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=name))
    return bool(found.status == health_pb2.HealthCheckResponse.SERVING)
