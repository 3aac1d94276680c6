"""What a caller of the router can be told.

    RouterError
    ├── ValidationError      a field is wrong: field, value, accepted           INVALID_ARGUMENT
    ├── ModelNotFound        another model than the fleet's                     NOT_FOUND
    ├── DuplicateRequest     the id is taken by other content                   ALREADY_EXISTS
    ├── StaleSession         a younger call holds the request                   ABORTED
    ├── DeadlineExpired      the deadline was over before the prompt was there  DEADLINE_EXCEEDED
    ├── SloRefused           the SLO cannot be met now                          RESOURCE_EXHAUSTED
    ├── Overloaded           a bounded queue is full, or this router is behind  RESOURCE_EXHAUSTED
    ├── Unauthenticated      no credential, or none that is good                UNAUTHENTICATED
    ├── Forbidden            the credential does not allow this                 PERMISSION_DENIED
    └── Unavailable          nobody can serve this now                          UNAVAILABLE

`status.py` maps each to its code and details. Errors compare by content, so that two runs of the core can be
compared.
"""

from __future__ import annotations

from scheduling.admission import Decision


class RouterError(Exception):
    """Any clear answer other than tokens."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.args == getattr(other, "args", None)

    def __hash__(self) -> int:
        return hash((type(self), str(self)))


class ValidationError(RouterError):
    """A field holds what it may not."""

    def __init__(self, field: str, value: object, accepted: str) -> None:
        super().__init__(f"{field} is {_short(value)}; accepted: {accepted}")
        self.field = field
        self.value = value
        self.accepted = accepted


class ModelNotFound(RouterError):
    """The fleet serves one model, and this is not its name."""

    def __init__(self, model: str, served: str) -> None:
        super().__init__(f"model is {_short(model)}; this fleet serves {served!r} (or leave it empty)")
        self.model = model
        self.served = served


class DuplicateRequest(RouterError):
    """The same request_id came with other content."""

    def __init__(self, request_id: str) -> None:
        super().__init__(
            f"request_id {request_id!r} is in use with other content; accepted: a new id, or the same "
            "request again"
        )
        self.request_id = request_id


class StaleSession(RouterError):
    """The call's session is not younger than the one that holds the request, or no longer the youngest."""

    def __init__(self, session: int, current: int) -> None:
        super().__init__(f"session is {session}, but session {current} holds this request")
        self.session = session
        self.current = current


class DeadlineExpired(RouterError):
    """There was no time left when the prompt had been tokenised, or none to begin with."""

    def __init__(self, deadline_ms: int) -> None:
        super().__init__(
            f"slo.deadline_ms is {deadline_ms}: over before the prompt was tokenised; accepted: more"
        )
        self.deadline_ms = deadline_ms


class SloRefused(RouterError):
    """The promise asked for would probably be broken."""

    def __init__(self, decision: Decision, retry_after_s: float) -> None:
        super().__init__(
            f"the SLO cannot be met now: ttft_ms of {decision.attainable_ttft_ms}, tpot_ms of "
            f"{decision.attainable_tpot_ms} and itl_ms of {decision.attainable_itl_ms} could be promised; "
            f"come back in {retry_after_s:.1f} s"
        )
        self.decision = decision
        self.retry_after_s = retry_after_s


class Overloaded(RouterError):
    """Something bounded is full, or this router does not keep up."""

    def __init__(self, what: str, retry_after_s: float | None = None) -> None:
        super().__init__(what)
        self.retry_after_s = retry_after_s


class Unauthenticated(RouterError):
    """Whose call it is was not proved. The sentence never repeats what came."""


class Forbidden(RouterError):
    """The credential is good, but not for this."""


class Unavailable(RouterError):
    """No worker, no store, or the router is leaving."""

    def __init__(self, why: str, retry_after_s: float = 1.0) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
