"""Everything the core can want done. Carried out in order by the shell, or by a simulator in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from router.core.events import Timer
from router.core.session.session import TokenLogprobs
from router.errors import Refused, RouterError
from scheduling.admission.admission import Verdict
from scheduling.columns import PromptLogprobs
from scheduling.request import FinishReason, Matched, Part, Path, ReceiveKind, SequenceSpec, SloClass
from scheduling.value import value
from state.records import DecodeRoom, Hold, PrefillRoom, QueueEntry

# To clients


@value
class Promise:
    """As in `inference.proto`."""

    predicted_ttft_ms: float
    predicted_tpot_ms: float
    ttft_ms: int | None
    tpot_ms: int | None
    at_risk: bool
    itl_ms: int | None = None
    predicted_itl_ms: float = 0.0


@value
class TellAccepted:
    """The request is taken."""

    listener: int
    request_id: str
    promise: Promise
    seed: int
    prompt_tokens: int
    fingerprint: str


@value
class TellQuoted:
    """The promise a request would get; `refused` is the error it would get instead."""

    listener: int
    verdict: Verdict
    promise: Promise
    prompt_tokens: int
    refused: Refused | None = None


@value
class TellQueued:
    """It waits."""

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
    """Tokens of one step for all clients, as columns: row i belongs to `listeners[i]`."""

    replayed: bool = False
    """Delivered before, to another call."""
    listeners: list[int] = field(default_factory=list)
    choices: list[int] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    finish_reasons: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    """Since the choice's token before; negative for a first token."""
    matches: list[tuple[int, int, Matched]] = field(default_factory=list)
    """Listener, choice and stop rule of each row that a stop rule ends."""


@value
class RelayRun:
    """Several tokens of one choice at once; text and log-probabilities they have none."""

    listener: int
    choice: int
    first_index: int
    token_ids: Sequence[int]
    finish: FinishReason
    max_gap_s: float


@value
class TellChoiceFinished:
    """A choice ended without a token that says so."""

    listener: int
    choice: int
    reason: FinishReason
    output_tokens: int
    matched: Matched | None = None


@value
class Marks:
    """A session's timeline once it is over, ascending; a phase that was not reached lasts no time."""

    received_at: float
    dispatched_at: float
    first_token_at: float
    decode_at: float
    ended_at: float
    """The last report's arrival, or the end without one."""


@value
class Outcome:
    """What was promised and delivered, but for the way to the client."""

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
    """An attempt has failed: whoever resumes elsewhere says how many have, those of former sessions too."""

    listener: int
    failed_attempts: int


@value
class TellLeaving:
    """This router is about to end, and the call can go on elsewhere."""

    listener: int


@value
class Reject:
    """The call ends with an error."""

    listener: int
    error: RouterError


# To the store


@value
class Enqueue:
    entry: QueueEntry
    capacity: int


@value
class Dequeue:
    request_key: str


@value
class AskGrants:
    worker: PrefillRoom
    decoders: tuple[DecodeRoom, ...]


@value
class Settle:
    request_key: str
    prefill_key: str
    decoders: tuple[DecodeRoom, ...]
    """The first with room is to be taken; the grant holds room on one of them."""


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
    """(request key, worker key) of every credit and lease held."""

    credits: tuple[tuple[str, str], ...]
    leases: tuple[tuple[str, str], ...]


@value
class TakeHolds:
    """Every credit and lease held, for a store that may have forgotten them."""

    credits: tuple[Hold, ...]
    leases: tuple[Hold, ...]


@value
class AskQueue:
    """Look at the queue; the answer also shows that the store is back."""


@value
class ChargeTenant:
    """Charge a newcomer to its tenant, unless that is over its share of the fleet."""

    request_key: str
    tenant: str
    tokens: float
    """Virtual ones, as in `scheduling.admission.shares`."""
    lead: float
    """The longest lead over the least served tenant that is allowed; infinite while little waits."""
    band: float
    """The longest lead that is counted for any tenant."""


@value
class RefundTenant:
    """The request was refused after all."""

    tenant: str
    tokens: float


# To workers


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
    """The first blocks of a choice that runs on are offered."""

    worker_key: str
    handle: int
    part: Part
    num_blocks: int


@value
class SendStopAndCopy:
    """A group is stopped, and the blocks of its choices are offered."""

    worker_key: str
    handle: int
    parts: tuple[Part, ...]


@value
class SendDrain:
    worker_key: str


# To the clock, the log and the metrics


@value
class SetTimer:
    timer: Timer
    at: float


@value
class RequestRefused:
    """Counted; the client is told by `Reject`."""

    slo_class: SloClass
    error: RouterError


@value
class RequestEnded:
    """Counted; told to the client by `TellFinished`, if one still listens."""

    request_key: str
    outcome: Outcome


@value
class AttemptFailed:
    """Logged and counted."""

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
    """Logged and counted: capacity died, and an accepted request was put behind."""

    request_key: str


@value
class GroupPreempted:
    """Counted: a worker took a running group's blocks."""

    request_key: str
    worker_key: str


@value
class GroupMigrated:
    """Counted: a group goes on elsewhere, though no attempt has failed."""

    request_key: str
    worker_key: str
    """The one it left."""


@value
class StoreChanged:
    """Logged: the store went away, or came back."""

    reachable: bool
    reason: str


WorkerCommand = (
    SendPrefill | SendReceive | SendDecode | SendCancel | SendPreCopy | SendStopAndCopy | SendDrain
)

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
"""What is asked of the store."""

Action = (
    TellAccepted
    | TellQuoted
    | TellQueued
    | TellPromptLogprobs
    | Relay
    | RelayRun
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
