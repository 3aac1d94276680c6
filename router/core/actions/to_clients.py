"""Events of clients' streams, and errors; `listener` is the call that gets them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from router.core.session.session import TokenLogprobs
from router.errors import Refused, RouterError
from scheduling.admission.admission import Verdict
from scheduling.columns import PromptLogprobs
from scheduling.request import FinishReason, Matched, Path, SloClass
from scheduling.value import value


@value
class Promise:
    """The message `Promise` of `inference.proto`."""

    predicted_ttft_ms: float
    predicted_tpot_ms: float
    ttft_ms: int | None
    tpot_ms: int | None
    at_risk: bool
    itl_ms: int | None = None
    predicted_itl_ms: float = 0.0


@value
class TellAccepted:
    """The request is accepted."""

    listener: int
    request_id: str
    promise: Promise
    seed: int
    prompt_tokens: int
    fingerprint: str


@value
class TellQuoted:
    """The promise that a request would get; `refused` is the error it would get instead."""

    listener: int
    verdict: Verdict
    promise: Promise
    prompt_tokens: int
    refused: Refused | None = None


@value
class TellQueued:
    """The request waits."""

    listener: int
    position: int
    work_ahead_tokens: int
    predicted_ttft_ms: float


@value
class TellPromptLogprobs:
    """Log-probabilities of some consecutive tokens of the prompt."""

    listener: int
    told: PromptLogprobs


@value
class Relay:
    """Tokens of one step for all clients, as columns; row i is for the call `listeners[i]`."""

    replayed: bool = False
    """The tokens were delivered before, to another call."""
    listeners: list[int] = field(default_factory=list)
    choices: list[int] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    finish_reasons: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    gaps_s: list[float | None] = field(default_factory=list)
    """Seconds since the choice's token before; None for a first token."""
    matches: list[tuple[int, int, Matched]] = field(default_factory=list)
    """Listener, choice and stop rule of each row that matched one."""


@value
class RelayRun:
    """Several tokens of one choice at once, without text and log-probabilities, from a simulated worker."""

    listener: int
    choice: int
    first_index: int
    token_ids: Sequence[int]
    finish: FinishReason
    max_gap_s: float


@value
class TellChoiceFinished:
    """A choice ended without a token that ends it."""

    listener: int
    choice: int
    reason: FinishReason
    output_tokens: int
    matched: Matched | None = None


@value
class Marks:
    """The timeline of an ended session, ascending; a phase that was not reached takes no time."""

    received_at: float
    dispatched_at: float
    first_token_at: float
    decode_at: float
    ended_at: float
    """When the last report arrived, or the session ended without one."""


class FinalError(str):
    """Why a request failed whose like would fail again, on any worker and at any time."""

    __slots__ = ()


@value
class Outcome:
    """The promise and the delivery of a request, without the way to the client."""

    slo_class: SloClass
    promise: Promise
    marks: Marks
    has_tokens: bool
    prompt_tokens: int
    cached_prompt_tokens: int
    output_tokens: int
    attempts: int
    path: Path
    tpot_s: float | None
    max_gap_s: float
    reasons: tuple[FinishReason, ...]
    error: str


@value
class TellFinished:
    """The last event of a stream."""

    listener: int
    outcome: Outcome


@value
class TellRetrying:
    """An attempt has failed. A client that resumes elsewhere brings this count, former sessions included.

    It resumes in the session after `session`, in which it is served now.
    """

    listener: int
    failed_attempts: int
    session: int


@value
class TellLeaving:
    """This router is about to end; the call can go on elsewhere."""

    listener: int


@value
class Reject:
    """The call ends with an error."""

    listener: int
    error: RouterError
