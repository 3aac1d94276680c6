"""Errors as gRPC statuses with rich details (google.rpc.Status): the one mapping.

Messages over 4 MiB never come this far: gRPC itself answers RESOURCE_EXHAUSTED.
"""

from __future__ import annotations

from dataclasses import dataclass

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from router.convert import refusal_to_pb
from router.errors import (
    DeadlineExpired,
    DuplicateRequest,
    Forbidden,
    ModelNotFound,
    Overloaded,
    RouterError,
    SloRefused,
    StaleSession,
    Unauthenticated,
    Unavailable,
    ValidationError,
)

DETAILS_KEY = "grpc-status-details-bin"

_CODES: dict[type[RouterError], grpc.StatusCode] = {
    ValidationError: grpc.StatusCode.INVALID_ARGUMENT,
    ModelNotFound: grpc.StatusCode.NOT_FOUND,
    DuplicateRequest: grpc.StatusCode.ALREADY_EXISTS,
    StaleSession: grpc.StatusCode.ABORTED,
    DeadlineExpired: grpc.StatusCode.DEADLINE_EXCEEDED,
    SloRefused: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    Forbidden: grpc.StatusCode.PERMISSION_DENIED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
}


@dataclass(frozen=True, slots=True)
class RichStatus:
    """What a call ends with."""

    code: grpc.StatusCode
    message: str
    trailing_metadata: tuple[tuple[str, bytes], ...]


def status_of(error: RouterError) -> RichStatus:
    """The code, sentence and details of an error."""
    code = _CODES[type(error)]
    status = status_pb2.Status(code=code.value[0], message=str(error))
    for detail in _details(error):
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return RichStatus(code, str(error), ((DETAILS_KEY, status.SerializeToString()),))


def _details(error: RouterError) -> list[Message]:
    details: list[Message] = []
    field = _field_of(error)
    if field is not None:
        details.append(_bad_request(field, str(error)))
    if isinstance(error, SloRefused | Overloaded | Unavailable) and error.retry_after_s is not None:
        details.append(_retry_info(error.retry_after_s))
    if isinstance(error, SloRefused):
        details.append(refusal_to_pb(error))
    return details


def _field_of(error: RouterError) -> str | None:
    match error:
        case ValidationError():
            return error.field
        case ModelNotFound():
            return "model"
        case DeadlineExpired():
            return "slo.deadline_ms"
        case _:
            return None


def _bad_request(field: str, description: str) -> error_details_pb2.BadRequest:
    violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=description)
    return error_details_pb2.BadRequest(field_violations=[violation])


def _retry_info(retry_after_s: float) -> error_details_pb2.RetryInfo:
    delay = duration_pb2.Duration()
    delay.FromMilliseconds(round(retry_after_s * 1000))
    return error_details_pb2.RetryInfo(retry_delay=delay)
