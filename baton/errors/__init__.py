"""The errors of the SDK.

    BatonError
    ├── InvalidRequest(field, description, violations)   something in the request is wrong
    │   └── TooLarge                                     the message exceeds the router's limit
    ├── NotFound                                         no such model, request or worker
    ├── Conflict                                         the request_id is in use with other content
    │   └── Superseded                                   a later call has taken over the request
    ├── Overloaded(retry_after_s)                        not now; nothing was done
    │   ├── Refused(attainable_ttft_ms, ...)             the SLO cannot be met
    │   └── QueueFull                                    too many requests wait
    ├── NotAllowed                                       the credential is missing, invalid or not sufficient
    ├── DeadlineExceeded                                 the fleet was too late
    │   └── TimedOut(phase, waited_s)                    this client's own `Timeout` ran out
    ├── Unavailable(address)                             no router is reachable, or none serves
    ├── Unsupported                                      the router does not know this call
    ├── GenerationFailed(completion)                     it ended early; what arrived is in `completion`
    ├── StreamCorrupt(choice, expected_index, index)     a token was lost or repeated: a bug of the fleet
    └── Internal                                         a bug of the fleet

Each has a `reason`: the name of a value of `ErrorReason` in the contract (`errors.proto`), which says what a
client can do about it. It is empty for errors that come from no router, such as a broken connection.

A stream that breaks raises nothing, but is resumed. `Unavailable` is raised if that was impossible for
`Timeout.connect_s`. `reachability` finds out why a router cannot be called.

May import the SDK's types; `reachability` also `baton.security.credentials`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baton.types import Attainable, Completion


class BatonError(Exception):
    """Base of the SDK's errors."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One wrong field by its path in the contract (`sampling.top_p`), and what would be accepted."""

    field: str
    description: str


class InvalidRequest(BatonError):
    """The request is wrong. `violations` lists all wrong fields; `field` and `description` are the first."""

    def __init__(self, message: str, violations: Sequence[FieldViolation] = ()) -> None:
        super().__init__(message)
        self.violations = tuple(violations)
        self.field = self.violations[0].field if self.violations else ""
        self.description = self.violations[0].description if self.violations else message


class TooLarge(InvalidRequest):
    """The message exceeds the router's limit."""


class NotFound(BatonError):
    """There is no such model, request or worker."""


class Conflict(BatonError):
    """The request_id is in use for a request with other content."""


class Superseded(Conflict):
    """A later call has taken over this request and receives its events. A new call would take it back."""

    session = 0
    """The number of the later call's session; 0 if it is not known."""


class NotAllowed(BatonError):
    """The fleet requires a credential, another one, or one that allows more."""


class Overloaded(BatonError):
    """Nothing was done; come back in `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Refused(Overloaded):
    """The SLO cannot be met now; the attainable one could have been."""

    def __init__(self, message: str, retry_after_s: float, attainable: Attainable) -> None:
        super().__init__(message, retry_after_s)
        self.attainable = attainable

    @property
    def attainable_ttft_ms(self) -> int:
        return self.attainable.ttft_ms

    @property
    def attainable_tpot_ms(self) -> int:
        return self.attainable.tpot_ms

    @property
    def attainable_itl_ms(self) -> int:
        return self.attainable.itl_ms


class QueueFull(Overloaded):
    """Too many requests wait, the router is overloaded, or the tenant is over its budget: see `reason`."""


class DeadlineExceeded(BatonError):
    """The fleet was too late."""


class TimedOut(DeadlineExceeded):
    """`phase` is the field of `Timeout` that ran out."""

    def __init__(self, phase: str, waited_s: float) -> None:
        super().__init__(f"{phase}: nothing arrived within {waited_s:g} s")
        self.phase = phase
        self.waited_s = waited_s


class Unavailable(BatonError):
    """No router is reachable, or none serves."""

    def __init__(self, message: str, address: str) -> None:
        super().__init__(f"{address}: {message}")
        self.address = address


class Unsupported(BatonError):
    """The router does not know this call."""


class GenerationFailed(BatonError):
    """The generation ended early; `completion` has what had arrived by then."""

    def __init__(self, completion: Completion) -> None:
        super().__init__(completion.finished.error or "a choice ended early")
        self.completion = completion


class StreamCorrupt(BatonError):
    """A token was lost or repeated."""

    def __init__(self, choice: int, expected_index: int, index: int) -> None:
        fault = "was lost" if index > expected_index else "came twice"
        super().__init__(f"choice {choice}: a token {fault}: expected index {expected_index}, got {index}")
        self.choice = choice
        self.expected_index = expected_index
        self.index = index


class Internal(BatonError):
    """A bug of the fleet."""
