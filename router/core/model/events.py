"""All events of the core. Times are seconds on the shell's monotonic clock."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import field

from router.request import Request
from runtime.state.records import Settled
from scheduling.admission.prefixes import NO_HITS, PrefixHits
from scheduling.admission.shares import Standing
from scheduling.columns import PromptLogprobs, TokenColumns
from scheduling.cost_model import CostModel, StepShape
from scheduling.request import FailureReason, Slo
from scheduling.value import value

# From clients


@value
class Arrived:
    """A call with a request that is validated and tokenised. `listener` names its connection."""

    listener: int
    request: Request
    hits: PrefixHits = NO_HITS
    """The beginning of its prompt that workers have."""


@value
class CancelAsked:
    """A client ends its request."""

    tenant: str
    request_id: str


@value
class ClientGone:
    """A call broke, or its client stopped reading."""

    listener: int


@value
class QuoteAsked:
    """A client asks for the promise that a request would get now, without sending it."""

    listener: int
    prompt_tokens: int
    num_choices: int
    max_tokens: int
    slo: Slo
    waiting: int
    """Requests in the fleet's queue, and their prompt tokens."""
    waiting_tokens: int
    hits: PrefixHits = NO_HITS
    """The beginning of its prompt that workers have."""
    waited_s: float = 0.0
    """Seconds from the receipt of a request until it would be judged."""
    adapter: str = ""
    """The digest of the request's LoRA adapter; empty without one."""


# From the store


@value
class Enqueued:
    """A group has a place in the queue."""

    request_key: str
    position: int
    work_ahead_tokens: int


@value
class QueueWasFull:
    """A group got no place in the queue."""

    request_key: str
    capacity: int


@value
class Granted:
    """A group may run with a prompt credit on this worker; room is held for it on a decode worker."""

    request_key: str
    worker_key: str
    decode_key: str
    is_leased: bool = False
    """The room is a lease already: nothing waited, and the group was leased at once."""


@value
class GrantsAnswered:
    """A grant call is over; its grants came before this event."""

    worker_key: str


@value
class SettleAnswered:
    """The outcome of turning a grant into a lease."""

    request_key: str
    prefill_key: str
    decode_key: str
    """The worker that the lease is on; empty without a lease."""
    outcome: Settled


@value
class QueueSeen:
    """The fleet's queue in two numbers."""

    waiting: int
    waiting_tokens: int


@value
class StoreForgot:
    """The store came back, and what was held there may be gone."""


@value
class HoldsLost:
    """The store did not have some of what was to be renewed, each by request key and worker key."""

    credits: tuple[tuple[str, str], ...]
    leases: tuple[tuple[str, str], ...]


@value
class Charged:
    """A newcomer's tenant was charged, or is over its share."""

    request_key: str
    standing: Standing


@value
class Nudged:
    """Capacity has come back somewhere."""


class StoreCall(enum.Enum):
    """A call of the store."""

    ENQUEUE = "enqueue"
    DEQUEUE = "dequeue"
    GRANT = "grant"
    SETTLE = "settle"
    RELEASE_CREDIT = "release_credit"
    RELEASE_LEASE = "release_lease"
    CHARGE = "charge"
    TAKE_HOLDS = "take_holds"
    OTHER = "other"


@value
class StoreFailed:
    """The store did not answer. `key` is the request's, the worker's for GRANT, or empty.

    `worker_key` is set for releases, for SETTLE, and for an ENQUEUE that was to lease at once; the latter two
    also have the workers that they were to lease on.
    A DEQUEUE has what its action has.
    The call may have been executed, or may yet be.
    """

    call: StoreCall
    key: str
    reason: str
    worker_key: str = ""
    decode_keys: tuple[str, ...] = ()


# From workers

PREFILL = "prefill"
DECODE = "decode"


@value
class WorkerFacts:
    """Facts that do not change while the worker's process lives."""

    worker_id: str
    incarnation: str
    role: str
    """`prefill` or `decode`"""
    address: str
    fingerprint: str
    block_size: int
    num_blocks: int
    max_num_seqs: int
    token_budget: int
    adapters: Mapping[str, str] = field(default_factory=dict)
    """The digests of its LoRA adapters, by name."""
    num_stages: int = 1
    """Its pipeline stages."""

    @property
    def key(self) -> str:
        """Return the name of this process of this worker."""
        return f"{self.worker_id}:{self.incarnation}"


@value
class WorkerLoad:
    """The message `WorkerLoad` of `worker.proto`."""

    step: int = 0
    running: int = 0
    waiting: int = 0
    pending_prefill_tokens: int = 0
    free_blocks: int = 0
    cached_blocks: int = 0
    context_tokens: int = 0
    draining: bool = False
    preempted: int = 0


@value
class WorkerJoined:
    """A worker's stream is up."""

    facts: WorkerFacts
    load: WorkerLoad
    cost: CostModel


@value
class WorkerLost:
    """A worker's stream broke, and with it all that was dispatched over it."""

    worker_key: str
    reason: str


@value
class WorkerHeld:
    """A worker's event loop is held up: the worker is silent but alive."""

    worker_key: str


@value
class AdaptersChanged:
    """The LoRA adapters of a worker that loads them while it serves, as they are now."""

    worker_key: str
    adapters: tuple[str, ...]
    """The digests of those that it has in memory or can load, in their order."""
    load_s: Mapping[str, float]
    """Seconds that loading takes, by digest, for those that it has not in memory."""


@value
class WorkerLoaded:
    """A heartbeat."""

    worker_key: str
    load: WorkerLoad
    running_step_s: float = 0.0
    """How long the step under way has been running; 0 without one."""


@value
class SequenceFailed:
    """A worker gave a group up."""

    handle: int
    reason: FailureReason
    message: str
    session: int = 0
    """With SUPERSEDED: the later session that the worker knows; 0 if it does not say."""
    session_age_seconds: float = 0.0
    """With SUPERSEDED: how long ago the last call of the later session came; at most the true time."""


@value
class StepReported:
    """One step of one worker, for the whole batch."""

    worker_key: str
    tokens: TokenColumns
    load: WorkerLoad
    step_s: float = 0.0
    """0 when no step ran."""
    failures: Sequence[SequenceFailed] = ()
    prefilled: Sequence[int] = ()
    cached_tokens: Sequence[int] = ()
    """Aligned with `prefilled`."""
    cost: CostModel | None = None
    shape: StepShape | None = None
    """None when no step ran."""
    preempted: Sequence[int] = ()
    """Groups that gave up their blocks."""
    resumed: Sequence[int] = ()
    """Groups that run again."""
    parked: Sequence[int] = ()
    """Groups that were stopped to go on elsewhere; all of their tokens have been reported."""
    prompt_logprobs: Sequence[PromptLogprobs] = ()
    released: Sequence[int] = ()
    """Groups that the worker holds no more, although they neither failed nor were cancelled."""


# From operators and the clock


@value
class DrainAsked:
    """An operator wants a worker to take nothing new."""

    worker_id: str


@value
class RouterLeaving:
    """This router takes nothing new from now on."""


@value
class RouterStopping:
    """The grace of leaving is over: what still runs here goes on elsewhere if the client resumes it."""


class TimerKind(enum.Enum):
    """The purpose of a timer."""

    CHORES = "chores"
    DEADLINE = "deadline"
    GRACE = "grace"
    FORGET = "forget"
    """The oldest ended request has been kept long enough."""


@value
class Timer:
    """`sid` is the session of a DEADLINE or GRACE; `listener` is the call that broke when the GRACE began."""

    kind: TimerKind
    sid: int = 0
    listener: int = 0


@value
class TimerFired:
    """A timer set by the core is due."""

    timer: Timer


Event = (
    Arrived
    | CancelAsked
    | ClientGone
    | QuoteAsked
    | Enqueued
    | QueueWasFull
    | Granted
    | GrantsAnswered
    | SettleAnswered
    | QueueSeen
    | Charged
    | Nudged
    | StoreFailed
    | StoreForgot
    | HoldsLost
    | WorkerJoined
    | WorkerLost
    | WorkerLoaded
    | WorkerHeld
    | AdaptersChanged
    | StepReported
    | DrainAsked
    | RouterLeaving
    | RouterStopping
    | TimerFired
)
