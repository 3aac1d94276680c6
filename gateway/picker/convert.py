"""Conversion of the proxy's messages: Envoy's external processing, as endpoint pickers speak it."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from google.protobuf.struct_pb2 import Struct

from baton.picker.v1 import ext_proc_pb2 as pb
from gateway.app import error_json
from gateway.errors import Problem
from gateway.picker.decision import Head, Picked

ENDPOINT = "x-gateway-destination-endpoint"
"""The header, and the key in the metadata, that name the gateway."""
SUBSET = "x-gateway-destination-endpoint-subset"
_NAMESPACE = "envoy.lb"
_SUBSET_NAMESPACE = "envoy.lb.subset_hint"
_PIECE_BYTES = 60_000
"""Envoy takes less than 64 KiB of a body in one message."""

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


def body_mode(request: Request) -> pb.BodyMode:
    """Return how the proxy sends the body; one that does not say does it as pickers are asked to support."""
    if not request.HasField("protocol_config"):
        return pb.BODY_MODE_FULL_DUPLEX_STREAMED
    return request.protocol_config.request_body_mode


def undecided_to_pb() -> Response:
    """Return the response to a head whose body decides."""
    return Response(request_headers=pb.HeadersResponse())


def picked_to_pb(picked: Picked, *, with_body: bool = False) -> Response:
    """Return the response that names the gateway, to the head or to the whole body."""
    metadata = Struct()
    metadata.update({_NAMESPACE: {ENDPOINT: picked.endpoint}})
    common = pb.CommonResponse(header_mutation=_set({ENDPOINT: picked.endpoint}), clear_route_cache=True)
    if with_body:
        return Response(request_body=pb.BodyResponse(response=common), dynamic_metadata=metadata)
    return Response(request_headers=pb.HeadersResponse(response=common), dynamic_metadata=metadata)


def problem_to_pb(head: Head, problem: Problem) -> Response:
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


def pieces_to_pb(piece: pb.HttpBody) -> list[Response]:
    """Return the responses that pass on a piece of the body of an HTTP request."""
    return [Response(request_body=pb.BodyResponse(response=_streamed(part))) for part in _small_enough(piece)]


def relayed_to_pb(request: Request, *, replaces: bool) -> list[Response]:
    """Return the responses that leave a part as it is. `replaces`: what comes back replaces the body."""
    match request.WhichOneof("request"):
        case "request_trailers":
            return [Response(request_trailers=pb.TrailersResponse())]
        case "response_headers":
            return [Response(response_headers=pb.HeadersResponse())]
        case "response_trailers":
            return [Response(response_trailers=pb.TrailersResponse())]
        case "response_body" if replaces:
            pieces = _small_enough(request.response_body)
            return [Response(response_body=pb.BodyResponse(response=_streamed(piece))) for piece in pieces]
        case "response_body":
            return [Response(response_body=pb.BodyResponse())]
        case _:
            return []


def _streamed(piece: pb.HttpBody) -> pb.CommonResponse:
    return pb.CommonResponse(body_mutation=pb.BodyMutation(streamed_response=piece))


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
