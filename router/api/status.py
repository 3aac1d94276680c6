"""Map errors to gRPC statuses with rich details (google.rpc.Status).

Messages over 4 MiB never get here: gRPC itself ends their calls with RESOURCE_EXHAUSTED.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status  # type: ignore[import-untyped]  # ships no annotations

from router.api.convert import refusal_to_pb
from router.errors import Overloaded, Reason, Refused, RouterError, Superseded, Unavailable

DOMAIN = "baton.v1"
"""The domain of every ErrorInfo."""

CODES: dict[Reason, grpc.StatusCode] = {
    Reason.MALFORMED_MESSAGE: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.INVALID_FIELD: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.PROMPT_TOO_LONG: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.SLO_IMPOSSIBLE: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.EXCEEDS_MEMORY: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.MODEL_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.REQUEST_ID_IN_USE: grpc.StatusCode.ALREADY_EXISTS,
    Reason.SUPERSEDED: grpc.StatusCode.ABORTED,
    Reason.DEADLINE_EXPIRED: grpc.StatusCode.DEADLINE_EXCEEDED,
    Reason.SLO_REFUSED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.QUEUE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.ROUTER_BUSY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.BUDGET_EXCEEDED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.READER_TOO_SLOW: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.CREDENTIAL_MISSING: grpc.StatusCode.UNAUTHENTICATED,
    Reason.CREDENTIAL_INVALID: grpc.StatusCode.UNAUTHENTICATED,
    Reason.TENANT_NOT_ALLOWED: grpc.StatusCode.PERMISSION_DENIED,
    Reason.SLO_CLASS_NOT_ALLOWED: grpc.StatusCode.PERMISSION_DENIED,
    Reason.OPERATORS_ONLY: grpc.StatusCode.PERMISSION_DENIED,
    Reason.ROUTER_LEAVING: grpc.StatusCode.UNAVAILABLE,
    Reason.NO_WORKER: grpc.StatusCode.UNAVAILABLE,
    Reason.REDIS_AWAY: grpc.StatusCode.UNAVAILABLE,
    Reason.TOKENIZER_LOST: grpc.StatusCode.UNAVAILABLE,
    Reason.UNKNOWN_METHOD: grpc.StatusCode.UNIMPLEMENTED,
    Reason.INTERNAL_ERROR: grpc.StatusCode.INTERNAL,
}

_WITH_BAD_REQUEST = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""Codes of errors with a BadRequest, which names their fields."""
_LONGEST = 1500
"""Characters of a sentence, which quotes a caller's regular expression or grammar."""


def status_of(error: RouterError, prefix: str = "") -> grpc.Status:
    """Return what ends a call with an error, as `status_to_pb` describes it."""
    made: grpc.Status = rpc_status.to_status(status_to_pb(error, prefix))
    return made


def status_to_pb(error: RouterError, prefix: str = "") -> status_pb2.Status:
    """Return the code, sentence and details of an error. `prefix` precedes its fields, such as `request.`."""
    code = CODES[error.reason]
    fields = [prefix + field for field in error.fields]
    sentence = prefix + str(error) if fields else str(error)
    if len(sentence) > _LONGEST:  # gRPC's trailers, which carry it twice, have 8 KiB
        sentence = sentence[:_LONGEST] + "..."
    status = status_pb2.Status(code=code.value[0], message=sentence)
    for detail in _details(error, code, fields, sentence):
        status.details.add().Pack(detail)
    return status


def _details(
    error: RouterError, code: grpc.StatusCode, fields: Sequence[str], sentence: str
) -> Iterator[Message]:
    info = error_details_pb2.ErrorInfo(reason=error.reason.name, domain=DOMAIN)
    if fields:
        info.metadata["field"] = fields[0]
    if error.limit is not None:
        info.metadata["limit"] = str(error.limit)
    if isinstance(error, Superseded):
        info.metadata["session"] = str(error.current)
    yield info
    if fields and code in _WITH_BAD_REQUEST:
        bad = error_details_pb2.BadRequest()
        for field in fields:
            bad.field_violations.add(field=field, description=sentence)
        yield bad
    if isinstance(error, Refused | Overloaded | Unavailable) and error.retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(round(error.retry_after_s * 1000))
        yield retry
    if isinstance(error, Refused):
        yield refusal_to_pb(error)
