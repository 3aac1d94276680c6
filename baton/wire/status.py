"""Convert a gRPC status, with its google.rpc details, to an error of the SDK."""

from __future__ import annotations

from typing import TypeVar

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from baton.errors import (
    BatonError,
    Conflict,
    DeadlineExceeded,
    FieldViolation,
    Internal,
    InvalidRequest,
    NotAllowed,
    NotFound,
    QueueFull,
    Refused,
    Superseded,
    TooLarge,
    Unavailable,
    Unsupported,
)
from baton.v1 import errors_pb2
from baton.wire.convert import attainable_from_pb

_DETAILS_KEY = "grpc-status-details-bin"
_DOMAIN = "baton.v1"
# The stream ends but the generation does not: it is resumed like after a break.
_TOO_SLOW = errors_pb2.ErrorReason.Name(errors_pb2.READER_TOO_SLOW)
# Calls that wrap a request in their own message, which the caller of the SDK never sees.
_WITHIN = "request."
_Detail = TypeVar("_Detail", bound=Message)

_PLAIN: dict[grpc.StatusCode, type[BatonError]] = {
    grpc.StatusCode.UNAUTHENTICATED: NotAllowed,
    grpc.StatusCode.PERMISSION_DENIED: NotAllowed,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: Conflict,
    grpc.StatusCode.ABORTED: Superseded,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.UNIMPLEMENTED: Unsupported,
}
_CALLERS_FAULT = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.FAILED_PRECONDITION,
)
# A router that stops ends its calls with CANCELLED, although nobody here cancelled them.
_OUT_OF_REACH = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
_CODES = {code.value[0]: code for code in grpc.StatusCode}
# What grpc.aio says of some calls whose connection broke. No router has said it.
_BROKEN_HERE = "Internal error from Core"
# The call crashed in the router or in the gRPC library, for example for lack of memory.
_CRASHED = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)


class CallCrashed(Internal):
    """The router failed unexpectedly. A repeated call, at this router or another one, may succeed."""


def from_rpc_error(error: grpc.aio.AioRpcError, address: str) -> BatonError:
    """Return the error to raise for a failed call to the router at `address`."""
    if (error.details() or "").startswith(_BROKEN_HERE):
        return Unavailable("the connection broke", address)
    return _error_of(error.code(), error.details() or error.code().name, _status_of(error), address)


def from_status(status: status_pb2.Status, address: str) -> BatonError:
    """Return the error to raise where the router at `address` sent a status inside a message."""
    code = _CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    return _error_of(code, status.message or code.name, status, address)


def _error_of(code: grpc.StatusCode, message: str, status: status_pb2.Status, address: str) -> BatonError:
    info = _detail(status, error_details_pb2.ErrorInfo)
    reason = info.reason if info is not None and info.domain == _DOMAIN else ""
    found = _error(code, message, status, reason, address)
    found.reason = reason
    if isinstance(found, Superseded) and info is not None:
        found.session = int(info.metadata.get("session", 0))
    return found


def _error(
    code: grpc.StatusCode, message: str, status: status_pb2.Status, reason: str, address: str
) -> BatonError:
    if reason == _TOO_SLOW:
        return Unavailable(message, address)
    if code in _OUT_OF_REACH:
        return Unavailable(message, address)
    if code in _CALLERS_FAULT:
        return _invalid(message, status)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return _exhausted(message, status)
    if code in _PLAIN:
        return _PLAIN[code](message)
    kind = CallCrashed if code in _CRASHED else Internal
    return kind(f"{code.name}: {message}")


def _status_of(error: grpc.aio.AioRpcError) -> status_pb2.Status:
    for key, value in error.trailing_metadata():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            return status_pb2.Status.FromString(value)
    return status_pb2.Status()


def _detail(status: status_pb2.Status, kind: type[_Detail]) -> _Detail | None:
    for packed in status.details:
        found = kind()
        if packed.Unpack(found):
            return found
    return None


def _invalid(message: str, status: status_pb2.Status) -> InvalidRequest:
    bad = _detail(status, error_details_pb2.BadRequest)
    if bad is None:
        return InvalidRequest(message)
    violations = [
        FieldViolation(violation.field.removeprefix(_WITHIN), violation.description.removeprefix(_WITHIN))
        for violation in bad.field_violations
    ]
    return InvalidRequest(message.removeprefix(_WITHIN), violations)


def _exhausted(message: str, status: status_pb2.Status) -> BatonError:
    retry = _detail(status, error_details_pb2.RetryInfo)
    refusal = _detail(status, errors_pb2.SloRefusal)
    if retry is None and refusal is None:
        # The gRPC library itself refuses a message over its limit, without details.
        return TooLarge(message)
    retry_after_s = retry.retry_delay.ToTimedelta().total_seconds() if retry is not None else 0.0
    if refusal is None:
        return QueueFull(message, retry_after_s)
    return Refused(message, retry_after_s, attainable_from_pb(refusal))
