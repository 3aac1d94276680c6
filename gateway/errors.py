"""What an error means over HTTP, whichever API tells it; each API puts it into a shape of its own.

| the SDK's error      | status | type                  |
|----------------------|--------|-----------------------|
| InvalidRequest       | 400    | invalid_request_error |
| TooLarge             | 413    | invalid_request_error |
| NotAllowed           | 401, 403 | authentication_error, permission_error |
| NotFound             | 404    | not_found_error       |
| Conflict             | 409    | invalid_request_error |
| Overloaded           | 429    | rate_limit_error      |
| DeadlineExceeded     | 408    | timeout_error         |
| Unsupported          | 501    | api_error             |
| Unavailable          | 503    | overloaded_error      |
| all others           | 500    | api_error             |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from baton.errors import (
    BatonError,
    Conflict,
    DeadlineExceeded,
    InvalidRequest,
    NotAllowed,
    NotFound,
    Overloaded,
    Refused,
    TooLarge,
    Unavailable,
    Unsupported,
)

_RETRY_AFTER_S = 1.0
"""When nobody computed a better time."""
_INVALID = "invalid_request_error"
_NO_CREDENTIAL = frozenset({"CREDENTIAL_MISSING", "CREDENTIAL_INVALID"})


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


def invalid(param: str, message: str, *, status: int = 400, code: str = "invalid_field") -> ApiError:
    """Return the error for one wrong field; `message` names its value and what would be accepted."""
    return ApiError(Problem(status, _INVALID, message, param=param, code=code))


def problem_of(error: BatonError, param_of: Callable[[str], str]) -> Problem:
    """Return what an error of the fleet means; `param_of` names a field of the contract in the HTTP body."""
    code = error.reason.lower()
    text = str(error)
    match error:
        case TooLarge():
            return Problem(413, _INVALID, text, code=code or "too_large")
        case InvalidRequest():
            param = param_of(error.field)
            return Problem(400, _INVALID, text.replace(error.field, param, 1), param=param, code=code)
        case NotAllowed() if error.reason in _NO_CREDENTIAL:
            return Problem(401, "authentication_error", text, code="invalid_api_key")
        case NotAllowed():
            return Problem(403, "permission_error", text, code=code)
        case NotFound():
            return Problem(404, "not_found_error", text, param="model", code=code or "model_not_found")
        case Conflict():
            return Problem(409, _INVALID, text, code=code)
        case Refused():
            return Problem(
                429,
                "rate_limit_error",
                text,
                param="slo",
                code=code,
                retry_after_s=error.retry_after_s,
                attainable=asdict(error.attainable),
            )
        case Overloaded():
            after_s = error.retry_after_s
            return Problem(429, "rate_limit_error", text, code=code, retry_after_s=after_s)
        case DeadlineExceeded():
            return Problem(408, "timeout_error", text, param="slo.deadline_ms", code=code)
        case Unsupported():
            return Problem(501, "api_error", text, code=code)
        case Unavailable():
            return Problem(
                503, "overloaded_error", text, code=code or "unavailable", retry_after_s=_RETRY_AFTER_S
            )
    return Problem(500, "api_error", text, code=code or "internal_error", retry_after_s=_RETRY_AFTER_S)
