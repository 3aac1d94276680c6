"""Errors over HTTP, by status and type. Each API puts them into a shape of its own."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from baton.errors import (
    BatonError,
    Conflict,
    DeadlineExceeded,
    GenerationFailed,
    InvalidRequest,
    NotAllowed,
    NotFound,
    Overloaded,
    Refused,
    TooLarge,
    Unavailable,
    Unsupported,
)

_INVALID = "invalid_request_error"
_NO_CREDENTIAL = frozenset({"CREDENTIAL_MISSING", "CREDENTIAL_INVALID"})
_RETRY_AFTER_S = {500: 1.0, 503: 1.0}
"""By status, where nobody computed a better time."""
_KINDS: dict[type[BatonError], tuple[int, str, str, str]] = {
    TooLarge: (413, _INVALID, "too_large", ""),
    InvalidRequest: (400, _INVALID, "invalid_field", ""),
    NotAllowed: (403, "permission_error", "not_allowed", ""),
    NotFound: (404, "not_found_error", "model_not_found", "model"),
    Conflict: (409, _INVALID, "conflict", ""),
    Refused: (429, "rate_limit_error", "slo_refused", "slo"),
    Overloaded: (429, "rate_limit_error", "overloaded", ""),
    DeadlineExceeded: (408, "timeout_error", "deadline_expired", "slo.deadline_ms"),
    Unsupported: (501, "api_error", "unsupported", ""),
    GenerationFailed: (500, "api_error", "generation_failed", ""),
    Unavailable: (503, "overloaded_error", "unavailable", ""),
}
"""Status, type, code unless the fleet gives a reason, and the field; subclasses before their bases."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as an HTTP response tells it.

    param          path of the wrong field in the HTTP body, `messages[1].role`; empty if no field is wrong
    code           a name for programs: the contract's `ErrorReason` in lower case, or empty
    retry_after_s  when the same request may succeed; None: not at all without a change
    attainable     the SLO that could have been promised, with `slo_refused`
    """

    status: int
    type: str
    message: str
    param: str = ""
    code: str = ""
    retry_after_s: float | None = None
    attainable: dict[str, Any] = field(default_factory=dict)

    def headers(self) -> dict[str, str]:
        """Return the headers that clients' own retries follow."""
        if self.retry_after_s is None:
            return {"x-should-retry": "false"}
        whole_s = max(1, math.ceil(self.retry_after_s))
        return {"retry-after": str(whole_s), "retry-after-ms": str(round(self.retry_after_s * 1000))}


class ApiError(Exception):
    """An error that the gateway itself finds."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def needs_redis(what: str) -> ApiError:
    """Return the error of a call that stores something, to a gateway without Redis."""
    message = f"{what} need state that is kept in Redis; this gateway was started without --redis"
    return ApiError(Problem(501, "api_error", message, code="unsupported"))


def invalid(param: str, message: str, *, status: int = 400, code: str = "invalid_field") -> ApiError:
    """Return the error for one wrong field; `message` names its value and what would be accepted."""
    return ApiError(Problem(status, _INVALID, message, param=param, code=code))


def renamed(field: str, names: Mapping[str, str]) -> str:
    """Return the name in an HTTP body of a field of the contract: `sampling.top_p` is `top_p`.

    `names` has the fields, and the messages, that have another name there.
    """
    for ours, theirs in names.items():
        if field == ours or field.startswith((f"{ours}[", f"{ours}.")):
            return theirs + field[len(ours) :]
    return re.sub(r"^(sampling|stop|chat)\.", "", field)


def problem_of(error: BatonError | ApiError, param_of: Callable[[str], str]) -> Problem:
    """Return what an error means; `param_of` names a field of the contract in the HTTP body."""
    if isinstance(error, ApiError):
        return error.problem
    kind = next((kind for kind in _KINDS if isinstance(error, kind)), BatonError)
    status, name, code, param = _KINDS.get(kind, (500, "api_error", "internal_error", ""))
    message = str(error)
    if isinstance(error, InvalidRequest) and error.field:
        param = param_of(error.field)
        message = message.replace(error.field, param, 1)
    if error.reason in _NO_CREDENTIAL:
        return Problem(401, "authentication_error", message, code="invalid_api_key")
    return Problem(
        status,
        name,
        message,
        param=param,
        code=error.reason.lower() or code,
        retry_after_s=error.retry_after_s if isinstance(error, Overloaded) else _RETRY_AFTER_S.get(status),
        attainable=asdict(error.attainable) if isinstance(error, Refused) else {},
    )
