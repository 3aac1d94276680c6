"""All actions of the core, which the shell carries out in order, or a simulator in virtual time.

- events of clients' streams (Tell, Relay), and errors (Reject); `listener` is the call that gets them
- timers, and what is logged and counted, which concern neither clients nor the store nor workers
- calls of the store (`StoreAction`)
- commands for workers (Send)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from router.core.model.events import Timer
from router.core.model.session import TokenLogprobs
from router.errors import Refused, RouterError
from runtime.state.records import DecodeRoom, Hold, PrefillRoom, QueueEntry
from scheduling.admission.admission import Verdict
from scheduling.columns import PromptLogprobs
from scheduling.request import FinishReason, Matched, Part, Path, ReceiveKind, SequenceSpec, SloClass
from scheduling.value import value

# For clients


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


# Timers, logs and metrics


@value
class SetTimer:
    timer: Timer
    at: float


@value
class RequestRefused:
    """Count a refusal; the client gets `Reject`."""

    slo_class: SloClass
    error: RouterError


@value
class RequestEnded:
    """Count an ended request; a client that is still there gets `TellFinished`."""

    request_key: str
    outcome: Outcome


@value
class AttemptFailed:
    """Log and count a failed attempt; `final` if it failed the request."""

    request_key: str
    attempt: int
    worker_key: str
    reason: str
    final: bool


@value
class RequestShed:
    """Count a request at risk that gave up its SLO so that more are in time; it waits on, behind them."""

    request_key: str


@value
class PromiseBroken:
    """Log and count an accepted request that was put behind, because capacity died."""

    request_key: str


@value
class GroupPreempted:
    """Count a running group whose worker took its blocks."""

    request_key: str
    worker_key: str


@value
class GroupMigrated:
    """Count a group that goes on elsewhere, though no attempt has failed."""

    request_key: str
    worker_key: str
    """The worker that it left."""


@value
class StoreChanged:
    """Log that the store went away, or came back."""

    reachable: bool
    reason: str


# For the store


@value
class Offer:
    """A worker for a newcomer's prompt, and the decode worker for its output: the same one, or another."""

    worker: PrefillRoom
    decoder: DecodeRoom


@value
class Enqueue:
    entry: QueueEntry
    capacity: int
    offer: Offer | None = None
    """Where it is leased at once, in place of entering the queue, if nothing waits there."""


@value
class Dequeue:
    """After a failed SETTLE, it names the workers of that: until the place is gone, the settle may yet be
    executed, and hold something there.
    """

    request_key: str
    prefill_key: str = ""
    decode_keys: tuple[str, ...] = ()


@value
class AskGrants:
    worker: PrefillRoom
    decoders: tuple[DecodeRoom, ...]


@value
class Settle:
    request_key: str
    prefill_key: str
    decoders: tuple[DecodeRoom, ...]
    """The lease is made on the first one with room; the grant holds room on one of them."""


@value
class ReleaseCredit:
    request_key: str
    worker_key: str


@value
class ReleaseLease:
    request_key: str
    worker_key: str


@value
class Renew:
    """Renew every credit and lease that is held, each by request key and worker key."""

    credits: tuple[tuple[str, str], ...]
    leases: tuple[tuple[str, str], ...]


@value
class TakeHolds:
    """Enter every credit and lease that is held in a store that may have forgotten them."""

    credits: tuple[Hold, ...]
    leases: tuple[Hold, ...]


@value
class AskQueue:
    """Look at the queue; an answer also shows that the store is back."""


@value
class ChargeTenant:
    """Charge a newcomer to its tenant, unless the tenant is over its share of the fleet.

    A request is charged once, whichever routers take it in.
    """

    request_key: str
    tenant: str
    tokens: float
    """Virtual tokens (`scheduling.admission.shares`)."""
    lead: float
    """The longest lead over the least served tenant that is allowed; infinite while little waits."""
    band: float
    """The longest lead that is counted for any tenant."""


@value
class RefundTenant:
    """Return a charge, if it was made: the request was refused after all."""

    request_key: str
    tenant: str
    tokens: float


StoreAction = (
    Enqueue
    | Dequeue
    | AskGrants
    | Settle
    | ReleaseCredit
    | ReleaseLease
    | Renew
    | TakeHolds
    | AskQueue
    | ChargeTenant
    | RefundTenant
)
"""The calls of the store."""


# For workers


@value
class SendPrefill:
    worker_key: str
    spec: SequenceSpec


@value
class SendReceive:
    worker_key: str
    spec: SequenceSpec
    source_address: str
    kind: ReceiveKind = ReceiveKind.PROMPT


@value
class SendDecode:
    worker_key: str
    spec: SequenceSpec


@value
class SendCancel:
    worker_key: str
    handles: tuple[int, ...]


@value
class SendPreCopy:
    """Offer the first blocks of a choice, which runs on."""

    worker_key: str
    handle: int
    part: Part
    num_blocks: int


@value
class SendStopAndCopy:
    """Stop a group, and offer the blocks of its choices."""

    worker_key: str
    handle: int
    parts: tuple[Part, ...]


@value
class SendDrain:
    worker_key: str


WorkerCommand = (
    SendPrefill | SendReceive | SendDecode | SendCancel | SendPreCopy | SendStopAndCopy | SendDrain
)


Action = (
    TellAccepted
    | TellQuoted
    | TellQueued
    | TellPromptLogprobs
    | Relay
    | TellChoiceFinished
    | TellFinished
    | TellLeaving
    | TellRetrying
    | Reject
    | StoreAction
    | WorkerCommand
    | SetTimer
    | RequestRefused
    | RequestEnded
    | AttemptFailed
    | RequestShed
    | PromiseBroken
    | GroupPreempted
    | GroupMigrated
    | StoreChanged
)


# Which of the stated SLOs were met: judged here alone, for clients and for metrics


@dataclass(frozen=True, slots=True)
class SloAttainment:
    """Which limits were met; True too where a limit was not stated."""

    ttft: bool
    tpot: bool
    itl: bool

    @property
    def all(self) -> bool:
        return self.ttft and self.tpot and self.itl


def attained(promise: Promise, ttft_ms: float, tpot_ms: float | None, max_gap_ms: float) -> SloAttainment:
    """Judge what was delivered, in milliseconds; without a second token there is no TPOT to miss."""
    return SloAttainment(
        ttft=promise.ttft_ms is None or ttft_ms <= promise.ttft_ms,
        tpot=promise.tpot_ms is None or tpot_ms is None or tpot_ms <= promise.tpot_ms,
        itl=promise.itl_ms is None or max_gap_ms <= promise.itl_ms,
    )


def attained_by(outcome: Outcome) -> SloAttainment:
    """Judge an ended request by the times at which its tokens reached the router."""
    ttft_ms = (outcome.marks.first_token_at - outcome.marks.received_at) * 1000
    tpot_ms = None if outcome.tpot_s is None else outcome.tpot_s * 1000
    return attained(outcome.promise, ttft_ms, tpot_ms, outcome.max_gap_s * 1000)
