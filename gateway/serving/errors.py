"""Errors over HTTP, by status and type, in the shape of each API."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
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
    Superseded,
    TooLarge,
    Unavailable,
    Unsupported,
)
from baton.wire.fields import shown


class NameTwice(BatonError):
    """Several fleets of this gateway serve a model by the same name."""

    def __init__(self, name: str, fleets: Sequence[str]) -> None:
        served = f"which the fleets of {' and of '.join(fleets)} serve"
        super().__init__(f"model is {shown(name)}, {served}; accepted: one fleet for each name")


_INVALID = "invalid_request_error"
_NO_CREDENTIAL = frozenset({"CREDENTIAL_MISSING", "CREDENTIAL_INVALID"})
_RETRY_AFTER_S = {500: 1.0, 503: 1.0}
"""By status, where nobody computed a better time."""
_KINDS: dict[type[BatonError], tuple[int, str, str, str]] = {
    TooLarge: (413, _INVALID, "too_large", ""),
    InvalidRequest: (400, _INVALID, "invalid_field", ""),
    NotAllowed: (403, "permission_error", "not_allowed", ""),
    NotFound: (404, "not_found_error", "model_not_found", "model"),
    Superseded: (409, _INVALID, "superseded", ""),
    Conflict: (409, _INVALID, "conflict", ""),
    Refused: (429, "rate_limit_error", "slo_refused", "slo"),
    Overloaded: (429, "rate_limit_error", "overloaded", ""),
    DeadlineExceeded: (408, "timeout_error", "deadline_expired", "slo.deadline_ms"),
    Unsupported: (501, "api_error", "unsupported", ""),
    GenerationFailed: (500, "api_error", "generation_failed", ""),
    Unavailable: (503, "overloaded_error", "unavailable", ""),
    NameTwice: (500, "api_error", "model_name_taken_twice", "model"),
}
"""Status, type, code unless the fleet gives a reason, and the field; subclasses before their bases."""
_UNTOLD: dict[type[BatonError], str] = {
    TooLarge: "the request is larger than what the fleet's routers take",
    Superseded: "the same request came again, and the later one receives the tokens",
    NameTwice: "several fleets of this gateway serve this model; its log has their addresses",
    BatonError: "the fleet failed unexpectedly; a router's log has the reason",
}
"""Messages in place of the fleet's own, which are about its calls and addresses."""
_REQUEST_ID = "request_id"


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


def unavailable(message: str, code: str = "unavailable") -> ApiError:
    """Return the error of a request that may succeed when it is sent again in a second."""
    return ApiError(Problem(503, "overloaded_error", message, code=code, retry_after_s=1.0))


def drained() -> ApiError:
    """Return the error of a request that a gateway could not end before it leaves."""
    return unavailable("the gateway leaves, and the request did not end in time; send it again")


def needs_redis(what: str) -> ApiError:
    """Return the error of a call that stores something, to a gateway without Redis."""
    message = f"{what} are kept in Redis, and this gateway was started without --redis"
    return ApiError(Problem(501, "api_error", message, code="unsupported"))


def invalid(
    param: str,
    message: str,
    *,
    status: int = 400,
    code: str = "invalid_field",
    retry_after_s: float | None = None,
) -> ApiError:
    """Return the error for one wrong field; `message` names its value and what would be accepted."""
    return ApiError(Problem(status, _INVALID, message, param, code, retry_after_s))


def no_such(kind: str, name: str, field: str = "") -> ApiError:
    """Return the error for an id, the value of `field`, that the caller's tenant does not have."""
    message = f"there is no {kind} {shown(name)}; it may have expired or been deleted"
    param = field or f"{kind}_id"
    return ApiError(Problem(404, "not_found_error", message, param=param, code=f"{kind}_not_found"))


def renamed(field: str, names: Mapping[str, str]) -> str:
    """Return the name in an HTTP body of a field of the contract: `sampling.top_p` is `top_p`.

    `names` has the fields, and the messages, that have another name there; `[]` stands for any place.
    """
    places = iter(_PLACE.findall(field))
    found = _PLACE.sub("[]", field)
    for ours, theirs in names.items():
        if found == ours or found.startswith((f"{ours}[", f"{ours}.")):
            found = theirs + found[len(ours) :]
            break
    else:
        found = re.sub(r"^(sampling|stop|chat)\.", "", found)
    return re.sub(r"\[\]", lambda _: next(places), found)


def _in_names_of(message: str, param_of: Callable[[str], str]) -> str:
    """Return a sentence of the fleet's with the names of fields that the HTTP body has; values stay."""
    value, separator, accepted = message.partition("; accepted: ")
    return value + separator + _CONTRACT_FIELD.sub(lambda field: param_of(field[0]), accepted)


_PLACE = re.compile(r"\[[^\]]*\]")
_CONTRACT_FIELD = re.compile(
    r"\b(?:(?:sampling|stop|chat|tokens)\.[a-z_]+|output_format)(?:\.[a-z_]+|\[\d+\])*"
)


def problem_of(error: BatonError | ApiError, param_of: Callable[[str], str]) -> Problem:
    """Return what an error means; `param_of` names a field of the contract in the HTTP body."""
    if isinstance(error, ApiError):
        return error.problem
    kind = next((kind for kind in _KINDS if isinstance(error, kind)), BatonError)
    status, name, code, param = _KINDS.get(kind, (500, "api_error", "internal_error", ""))
    message = _UNTOLD.get(kind) or str(error)
    if isinstance(error, Unavailable):
        said = message.removeprefix(f"{error.address}: ")
        message = said if error.reason else "no router of the fleet could be reached; come back"
    wrong = _REQUEST_ID if error.reason == "REQUEST_ID_IN_USE" else getattr(error, "field", "")
    if wrong:
        param = param_of(wrong)
        message = _in_names_of(message.replace(wrong, param, 1), param_of)
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


ANTHROPIC_PREFIX = "/v1/messages"
"""Where the paths of Anthropic's API begin; all others are OpenAI's."""
_ANTHROPIC_TYPES = {413: "request_too_large", 408: "timeout_error", 409: "invalid_request_error"}
_OPENAI_TYPES = {404: "invalid_request_error"}
"""OpenAI has no type for what does not exist; its clients look at the status."""


def error_json(path: str, problem: Problem) -> dict[str, Any]:
    """Return an error in the shape of the API that has this path."""
    return anthropic_error(problem) if path.startswith(ANTHROPIC_PREFIX) else openai_error(problem)


def anthropic_error(problem: Problem) -> dict[str, Any]:
    """Return Anthropic's error object, with `param` and the SLO that could be met as further fields."""
    return {"type": "error", "error": _error_of(problem, _ANTHROPIC_TYPES)}


def openai_error(problem: Problem) -> dict[str, Any]:
    """Return OpenAI's error object, with the SLO that could have been promised."""
    error = _error_of(problem, _OPENAI_TYPES)
    if problem.retry_after_s is not None:
        error["retry_after_ms"] = round(problem.retry_after_s * 1000)
    return {"error": error}


def _error_of(problem: Problem, types: Mapping[int, str]) -> dict[str, Any]:
    """Return what both have; `types` has the error's type by status, where an API has one of its own."""
    error: dict[str, Any] = {
        "message": problem.message,
        "type": types.get(problem.status, problem.type),
        "param": problem.param or None,
        "code": problem.code or None,
    }
    if problem.attainable:
        error["attainable"] = problem.attainable
    return error
