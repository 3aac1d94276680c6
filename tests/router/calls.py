"""Calls of clients to a router with scripted workers, and what the clients hear."""

from __future__ import annotations

import re
from typing import Any

import grpc.aio
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc_status import rpc_status  # type: ignore[import-untyped]  # ships no annotations

from baton.v1 import errors_pb2, generation_pb2, inference_pb2
from tests.router.scripted_worker import token_at

DETAILS = (
    error_details_pb2.ErrorInfo,
    error_details_pb2.BadRequest,
    error_details_pb2.RetryInfo,
    errors_pb2.SloRefusal,
)
PROMPT = (5, 6, 7, 8, 9)


def request(max_tokens: int = 5, request_id: str = "", **fields: object) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        request_id=request_id,
        tokens=inference_pb2.TokenInput(token_ids=PROMPT),
        stop=generation_pb2.StopRules(max_tokens=max_tokens),
        **fields,  # type: ignore[arg-type]  # what a field takes is checked by the message
    )


def expected(count: int, choice: int = 0, first: int = 0) -> list[int]:
    return [token_at(PROMPT, choice, index) for index in range(first, first + count)]


async def events_of(call: object) -> list[inference_pb2.GenerationEvent]:
    return [response.event async for response in call]  # type: ignore[attr-defined]  # a call is an async iterable


def tokens_of(events: list[inference_pb2.GenerationEvent], choice: int = 0) -> list[int]:
    found: list[int] = []
    for event in events:
        if event.WhichOneof("event") == "tokens" and event.tokens.choice == choice:
            assert event.tokens.first_index == len(found)
            found.extend(event.tokens.token_ids)
    return found


def finished_of(events: list[inference_pb2.GenerationEvent]) -> inference_pb2.Finished:
    assert events[-1].WhichOneof("event") == "finished"
    return events[-1].finished


def details_of(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    """The rich details of an error, by their types' full names."""
    found: dict[str, Any] = {}
    for packed in rpc_status.from_call(error).details:
        for kind in DETAILS:
            message = kind()
            if packed.Unpack(message):
                found[kind.DESCRIPTOR.full_name] = message
    return found


def reason_of(error: grpc.aio.AioRpcError) -> str:
    """The reason that the error's ErrorInfo names; every error of Baton has one."""
    info = details_of(error)["google.rpc.ErrorInfo"]
    assert info.domain == "baton.v1"
    return str(info.reason)


def fields_of(error: grpc.aio.AioRpcError) -> list[str]:
    """The paths that the error's BadRequest names, if it has one."""
    bad = details_of(error).get("google.rpc.BadRequest")
    return [] if bad is None else [field_violation.field for field_violation in bad.field_violations]


def value_at(message: Message, path: str) -> object:
    """Return the value at the path of a FieldViolation. Raise if there is none."""
    found: Any = message
    for name, key in re.findall(r"(?:^|\.)(\w+)(?:\[([^\]]+)\])?", path):
        field = found.DESCRIPTOR.fields_by_name[name]
        found = getattr(found, name)
        if key:
            assert field.is_repeated, f"{name} of {path} has no elements"
            is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
            if is_map:
                assert int(key) in found, f"{path} has no such key"
            found = found[int(key)]
    rebuilt = re.sub(r"(?:^|\.)\w+(?:\[[^\]]+\])?", "", path)
    assert not rebuilt, f"{path} is no path"
    return found
