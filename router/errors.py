"""The errors of the router that callers see.

    RouterError
    ├── MalformedMessage     the bytes are not the call's message               INVALID_ARGUMENT
    ├── ValidationError      a field is wrong: field, value, accepted           INVALID_ARGUMENT
    ├── ModelNotFound        the fleet serves another model                     NOT_FOUND
    ├── DuplicateRequest     the id is in use with other content                ALREADY_EXISTS
    ├── Superseded           a later call has taken over the request            ABORTED
    ├── DeadlineExpired      the deadline passed before the prompt was ready    DEADLINE_EXCEEDED
    ├── Refused              the SLO cannot be met now                          RESOURCE_EXHAUSTED
    ├── Overloaded           something bounded is full                          RESOURCE_EXHAUSTED
    ├── Unauthenticated      the credential is missing or invalid               UNAUTHENTICATED
    ├── NotAllowed           the credential does not allow this                 PERMISSION_DENIED
    ├── Unavailable          nothing can serve this now                         UNAVAILABLE
    ├── UnknownMethod        there is no such call                              UNIMPLEMENTED
    └── InternalError        a bug of the router                                INTERNAL

Each has a `Reason`; `api/status.py` maps reasons to codes, and errors to details. Errors compare by content,
so that two runs of the core can be compared. The SDK uses the same names.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence

from scheduling.admission.admission import Decision


class Reason(enum.Enum):
    """`ErrorReason` of the contract, which explains each reason and what a client should do."""

    MALFORMED_MESSAGE = enum.auto()
    INVALID_FIELD = enum.auto()
    PROMPT_TOO_LONG = enum.auto()
    SLO_IMPOSSIBLE = enum.auto()
    EXCEEDS_MEMORY = enum.auto()
    MODEL_NOT_FOUND = enum.auto()
    REQUEST_ID_IN_USE = enum.auto()
    SUPERSEDED = enum.auto()
    DEADLINE_EXPIRED = enum.auto()
    SLO_REFUSED = enum.auto()
    QUEUE_FULL = enum.auto()
    ROUTER_BUSY = enum.auto()
    BUDGET_EXCEEDED = enum.auto()
    READER_TOO_SLOW = enum.auto()
    CREDENTIAL_MISSING = enum.auto()
    CREDENTIAL_INVALID = enum.auto()
    TENANT_NOT_ALLOWED = enum.auto()
    SLO_CLASS_NOT_ALLOWED = enum.auto()
    OPERATORS_ONLY = enum.auto()
    ROUTER_LEAVING = enum.auto()
    NO_WORKER = enum.auto()
    REDIS_AWAY = enum.auto()
    TOKENIZER_LOST = enum.auto()
    UNKNOWN_METHOD = enum.auto()
    INTERNAL_ERROR = enum.auto()


class RouterError(Exception):
    """Any error that ends a call.

    `fields` are the paths of the wrong fields, from `GenerateRequest` or from the call's own message. The
    sentence begins with the first of them.
    """

    def __init__(
        self, reason: Reason, sentence: str, *, fields: tuple[str, ...] = (), limit: int | None = None
    ) -> None:
        super().__init__(sentence)
        self.reason = reason
        self.fields = fields
        self.limit = limit
        """The number that was exceeded, if one was."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.args == getattr(other, "args", None)

    def __hash__(self) -> int:
        return hash((type(self), str(self)))


class MalformedMessage(RouterError):
    """The bytes cannot be parsed as the call's message."""

    def __init__(self, why: str) -> None:
        super().__init__(Reason.MALFORMED_MESSAGE, why)


class ValidationError(RouterError):
    """A field has a value that is not accepted."""

    def __init__(
        self,
        field: str,
        value: object,
        accepted: str,
        reason: Reason = Reason.INVALID_FIELD,
        *,
        also: tuple[str, ...] = (),
        limit: int | None = None,
    ) -> None:
        super().__init__(
            reason, f"{field} is {_short(value)}; accepted: {accepted}", fields=(field, *also), limit=limit
        )


class ModelNotFound(RouterError):
    """The fleet serves one model, and it has other names."""

    def __init__(self, model: str, names: Sequence[str]) -> None:
        accepted = f"{', '.join(map(repr, names))}, which this fleet serves, or leave it empty"
        super().__init__(
            Reason.MODEL_NOT_FOUND,
            f"model is {_short(model)}; accepted: {accepted}",
            fields=("model",),
        )


class DuplicateRequest(RouterError):
    """The request_id is in use for a request with other content."""

    def __init__(self, request_id: str) -> None:
        super().__init__(
            Reason.REQUEST_ID_IN_USE,
            f"request_id is {request_id!r}, in use with other content; accepted: a new id, or the same "
            "request again",
            fields=("request_id",),
        )


class Superseded(RouterError):
    """Later calls have taken over the request: of a newer session, or too many of the same one."""

    def __init__(self, session: int, current: int) -> None:
        super().__init__(
            Reason.SUPERSEDED,
            f"session is {session}, but {'later calls of ' if session == current else ''}session {current} "
            "took over this request and receive its events",
        )
        self.current = current


class DeadlineExpired(RouterError):
    """The deadline passed before the prompt was tokenised, or was 0."""

    def __init__(self, deadline_ms: int) -> None:
        super().__init__(
            Reason.DEADLINE_EXPIRED,
            f"slo.deadline_ms is {deadline_ms}, which passed before the prompt was tokenised; accepted: more",
            fields=("slo.deadline_ms",),
        )


class Refused(RouterError):
    """The requested SLO would probably be missed."""

    def __init__(self, decision: Decision, retry_after_s: float) -> None:
        super().__init__(
            Reason.SLO_REFUSED,
            f"the SLO cannot be met now: ttft_ms of {decision.attainable_ttft_ms}, tpot_ms of "
            f"{decision.attainable_tpot_ms} and itl_ms of {decision.attainable_itl_ms} could be promised; "
            f"come back in {retry_after_s:.1f} s",
        )
        self.decision = decision
        self.retry_after_s = retry_after_s


class Overloaded(RouterError):
    """Something bounded is full, or this router does not keep up."""

    def __init__(
        self, reason: Reason, sentence: str, retry_after_s: float | None = None, *, limit: int | None = None
    ) -> None:
        super().__init__(reason, sentence, limit=limit)
        self.retry_after_s = retry_after_s


class Unauthenticated(RouterError):
    """The caller is not authenticated. The sentence never repeats the credential."""


class NotAllowed(RouterError):
    """The credential is valid, but does not allow this."""


class Unavailable(RouterError):
    """There is no worker or no store, or the router is leaving."""

    def __init__(self, reason: Reason, why: str, retry_after_s: float = 1.0) -> None:
        super().__init__(reason, why)
        self.retry_after_s = retry_after_s


class UnknownMethod(RouterError):
    """The call is for a method that this router does not have."""

    def __init__(self, method: str) -> None:
        super().__init__(Reason.UNKNOWN_METHOD, f"there is no method {_short(method)} here")


class InternalError(RouterError):
    """The router failed unexpectedly."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(Reason.INTERNAL_ERROR, f"the router failed because of a bug: {type(cause).__name__}")


class Described(str):
    """A description in place of a value that is too long, or says nothing; shown without quotes."""

    __slots__ = ()


SET = Described("set")


def _short(value: object) -> str:
    """Return a value as callers in any language write it: a text in quotes, anything else as JSON."""
    if isinstance(value, Described):
        text = str(value)
    else:
        text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 80 else text[:77] + "..."
