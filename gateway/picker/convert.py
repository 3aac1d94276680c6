"""Conversion of the proxy's messages: Envoy's external processing, as endpoint pickers speak it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson
from google.protobuf.struct_pb2 import Struct

from baton.picker.v1 import ext_proc_pb2 as pb
from gateway.picker.decision import Decision, Head
from gateway.serving.errors import Problem, error_json

ENDPOINT = "x-gateway-destination-endpoint"
"""The header, and the key in the metadata, that name the gateway."""
SUBSET = "x-gateway-destination-endpoint-subset"
_NAMESPACE = "envoy.lb"
_SUBSET_NAMESPACE = "envoy.lb.subset_hint"
_PIECE_BYTES = 60_000
"""Envoy takes less than 64 KiB of a body in one message."""
FULL_DUPLEX = pb.BODY_MODE_FULL_DUPLEX_STREAMED

Request = pb.ProcessingRequest
Response = pb.ProcessingResponse


def head_from_pb(request: Request) -> Head:
    """Return the head of an HTTP request, and the gateways that the proxy allows."""
    headers = {
        field.key.lower(): field.value or field.raw_value.decode("latin-1")
        for field in request.request_headers.headers.headers
    }
    return Head(
        headers.get(":method", ""),
        headers.get(":path", "").partition("?")[0],
        headers,
        _subset(request),
        request.request_headers.end_of_stream,
    )


def _subset(request: Request) -> frozenset[str] | None:
    hint = request.metadata_context.filter_metadata.get(_SUBSET_NAMESPACE)
    if hint is None or SUBSET not in hint.fields:
        return None
    value = hint.fields[SUBSET]
    texts = (
        value.string_value.split(",")
        if value.HasField("string_value")
        else [item.string_value for item in value.list_value.values]
    )
    return frozenset(text.strip() for text in texts)


@dataclass(frozen=True, slots=True)
class BodyModes:
    """How the proxy sends the bodies of an HTTP request and of its response.

    `FULL_DUPLEX`: the proxy goes on with the pieces that the picker sends back, and with nothing else. Other
    modes: a body stays as it is, unless the picker replaces it.
    """

    request: pb.BodyMode
    response: pb.BodyMode


def body_modes(first: Request) -> BodyModes:
    """Return the modes by the first part of a stream.

    A proxy that names none uses the one that endpoint pickers are asked to support: `FULL_DUPLEX`.
    """
    if not first.HasField("protocol_config"):
        return BodyModes(FULL_DUPLEX, FULL_DUPLEX)
    return BodyModes(first.protocol_config.request_body_mode, first.protocol_config.response_body_mode)


def decision_to_pb(head: Head, decision: Decision, *, with_body: bool = False) -> Response:
    """Return what names the gateway, to the head or to the whole body, or else the response to the caller."""
    if isinstance(decision, Problem):
        return _problem_to_pb(head, decision)
    metadata = Struct()
    metadata.update({_NAMESPACE: {ENDPOINT: decision}})
    common = pb.CommonResponse(header_mutation=_set({ENDPOINT: decision}), clear_route_cache=True)
    if with_body:
        return Response(request_body=pb.BodyResponse(response=common), dynamic_metadata=metadata)
    return Response(request_headers=pb.HeadersResponse(response=common), dynamic_metadata=metadata)


def _problem_to_pb(head: Head, problem: Problem) -> Response:
    """Return the HTTP response that the caller gets, in the shape of the API that it called."""
    headers = {"content-type": "application/json", **problem.headers()}
    return Response(
        immediate_response=pb.ImmediateResponse(
            status=pb.HttpStatus(code=problem.status),
            headers=_set(headers),
            body=orjson.dumps(error_json(head.path, problem)),
            details=problem.code,
        )
    )


def relayed_to_pb(part: Request, modes: BodyModes) -> list[Response]:
    """Return the responses that leave a part as it is."""
    match part.WhichOneof("request"):
        case "request_body":
            return [Response(request_body=body) for body in _relayed(part.request_body, modes.request)]
        case "request_trailers":
            return [Response(request_trailers=pb.TrailersResponse())]
        case "response_headers":
            return [Response(response_headers=pb.HeadersResponse())]
        case "response_body":
            return [Response(response_body=body) for body in _relayed(part.response_body, modes.response)]
        case "response_trailers":
            return [Response(response_trailers=pb.TrailersResponse())]
        case _:
            return []


def _relayed(body: pb.HttpBody, mode: pb.BodyMode) -> list[pb.BodyResponse]:
    if mode != FULL_DUPLEX:
        return [pb.BodyResponse()]
    return [
        pb.BodyResponse(response=pb.CommonResponse(body_mutation=pb.BodyMutation(streamed_response=piece)))
        for piece in _small_enough(body)
    ]


def _small_enough(piece: pb.HttpBody) -> list[pb.HttpBody]:
    if len(piece.body) <= _PIECE_BYTES:
        return [piece]
    starts = range(0, len(piece.body), _PIECE_BYTES)
    parts = [pb.HttpBody(body=piece.body[start : start + _PIECE_BYTES]) for start in starts]
    parts[-1].end_of_stream = piece.end_of_stream
    return parts


def _set(headers: Mapping[str, str]) -> pb.HeaderMutation:
    return pb.HeaderMutation(
        set_headers=[
            pb.HeaderValueOption(
                header=pb.HeaderValue(key=name, raw_value=value.encode("latin-1")),
                append_action=pb.APPEND_ACTION_OVERWRITE_IF_EXISTS_OR_ADD,
            )
            for name, value in headers.items()
        ]
    )
