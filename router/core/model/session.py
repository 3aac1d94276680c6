"""One request while this router holds it: its choices with what was delivered, and the groups that run them.

    group:  NEW → ENQUEUEING → WAITING → SETTLING → RUNNING → ENDED
                       ↑           ↑         │          │
                       └─ STRANDED ←─────────┘          └→ next attempt: new groups

A group is the unit that is queued, leased and dispatched: choices that share all their tokens. A group ends
once; all that it holds of the store is returned then.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from router.core.model.events import Granted
from router.request import Request
from scheduling.admission.admission import Decision
from scheduling.admission.backlog import Place
from scheduling.admission.prefixes import PrefixHits
from scheduling.columns import PromptLogprobs, TokenColumns
from scheduling.placement import Handoff
from scheduling.prediction import Prediction, QueueAhead
from scheduling.request import FinishReason, Matched, Path, Slo

NOTHING = QueueAhead(0, 0)
MAX_ATTEMPTS = 3
"""Attempts that may fail at their workers; then the request itself is taken to be at fault."""
MAX_LOST = 5
"""Attempts that may fail at their workers or lose them, over all routers. Workers also die of other causes:
in an hour in which one was killed every seven seconds, two of 20 746 requests had three die under them."""
MAX_CALLS = 8
"""Calls that may receive one request at once; one more ends the oldest, which may be a broken connection."""
MAX_FAILURES = 10
"""Attempts that may fail at one router for any reason: what breaks links, and no worker, ends too."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probability of one token, and of its alternatives, the most likely first."""

    logprob: float
    top_token_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


class Phase(enum.Enum):
    """How far a group has come."""

    NEW = "new"
    ENQUEUEING = "enqueueing"
    """The store was asked for a place in the queue."""
    WAITING = "waiting"
    SETTLING = "settling"
    """Granted; the store was asked for a block lease."""
    RUNNING = "running"
    STRANDED = "stranded"
    """Admitted, but in no queue: the group rests, the store is away, or no worker fits. Tried again soon."""
    ENDED = "ended"


IN_QUEUE = (Phase.ENQUEUEING, Phase.WAITING)


@dataclass(slots=True, eq=False)
class Choice:
    """One continuation, as delivered. Element i of each list belongs to index i.

    `texts` and `logprobs` of tokens that a former session delivered are empty; the newest tokens may have
    none until `pad`.
    """

    index: int
    token_ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    finish: FinishReason = FinishReason.NONE
    matched: Matched | None = None
    """The stop rule that ended it, if one did."""
    first_at: float | None = None
    last_at: float | None = None
    group: Group | None = None

    def extend(self, token_ids: Sequence[int]) -> None:
        """Add tokens that come without text."""
        self.token_ids.extend(token_ids)

    def pad(self) -> None:
        """Make all lists equally long."""
        missing = len(self.token_ids) - len(self.texts)
        if missing:
            self.texts.extend([""] * missing)
            self.logprobs.extend([None] * missing)


@dataclass(slots=True, eq=False)
class Group:
    """Choices that run on the same worker. They are run in attempts, one after the other."""

    key: str
    session: Session
    choices: list[Choice]
    blocks: int
    work_tokens: int
    num_seqs: int
    """One sequence for each choice."""
    seat_share: int = 0
    """The sum of its seats in the queue: seats · 1000 ÷ the weight of its tenant (`share_of`)."""
    expected_tokens: int = 0
    """Expected output of all its choices, by the lengths of such outputs."""

    # Its place in the queue
    due_at: float = 0.0
    """The time by which the queue orders it within its class: `backlog.due_at` plus `delay_s`, or
    the time of receipt if it has output."""
    place: Place = (0, "")
    """By class, due time and key, as the store sorts, but on this router's clock. A promotion leaves it."""
    own_ahead: QueueAhead = NOTHING
    """This router's work ahead of it when it asked for its place, less what was bound until the answer."""
    delay_s: float = 0.0
    """By how much it is put behind: its promise was given up when capacity died, or its tenant has had more
    than its share."""
    is_promoted: bool = False
    """Batch work that goes first, so that batch has its share."""
    is_relegated: bool = False
    """It had a grant when it could no longer be served in time, and goes last (`late_go_last`)."""
    asked_at: float = 0.0
    """When a place in the queue was last asked for."""
    stranded_at: float | None = None
    rests_until: float = 0.0
    """Not tried again before this time, since the next attempt might fail at once."""
    early_grant: Granted | None = None
    """A grant that came before the store confirmed the place."""

    # What failed
    failures: int = 0
    """Attempts that failed, those of the groups it was split from included."""
    failed_with: str = ""
    """Why the last of them failed."""
    failed_elsewhere: int = 0
    """Failures among these that happened at other routers, as the client reports."""
    excused_failures: int = 0
    """Failures among these that were not its doing: their workers live."""
    lost_workers: tuple[str, ...] = ()
    """Workers that were lost in a failed attempt, and have not been seen since."""
    failed_handoffs: tuple[Handoff, ...] = ()
    """Handoffs that failed, without those of sources that were lost since."""
    failed_workers: frozenset[str] = frozenset()
    """Workers that failed an attempt by themselves."""
    avoided: frozenset[str] = frozenset()
    """Workers to use only where no other worker can take it: those that failed it, had no room, or left."""

    # Its attempt
    phase: Phase = Phase.NEW
    attempt: int = 0
    """Numbers the fences of a run; counts what was dispatched, also of the groups it was split from."""
    num_copies: int = 0
    """Fences among these that were only used for pre-copies."""
    failed_moves: int = 0
    """How often it could not be moved from a worker that drains."""
    sent_session: int = 0
    """The session number that its attempt was dispatched under."""
    sent_at: float = 0.0
    """When its attempt was dispatched."""
    handle: int = 0
    prefill_key: str | None = None
    """The worker that computes the prompt; the decode worker itself when aggregated."""
    decode_key: str | None = None
    credit_on: str | None = None
    lease_on: str | None = None
    decode_reported: bool = False
    source_left_at: float | None = None
    """Since when nobody sends KV any more that its decode worker may still wait for."""
    is_released: bool = False
    """The decode worker holds it no more: a report of the prefill worker is to end it."""
    early_tokens: list[TokenColumns] = field(default_factory=list)
    """Tokens from the decode worker that arrived before the prefill worker had reported the whole prompt."""
    preempted_at: float | None = None
    """Since when its worker has had no blocks for it."""
    migrated_at: float = float("-inf")
    """When it was last taken from a worker, for want of blocks or for a higher class."""

    def dissolve(self) -> None:
        """Let its choices forget it. A cycle of the two would stay in memory until a garbage collection."""
        for choice in self.choices:
            choice.group = None

    @property
    def own_failures(self) -> int:
        """Return the failures that may be its own doing."""
        return self.failures - self.excused_failures

    @property
    def open_choices(self) -> list[Choice]:
        return [choice for choice in self.choices if not choice.finish]

    @property
    def delivered_tokens(self) -> int:
        """Return the output of its choices so far."""
        return sum(len(choice.token_ids) for choice in self.choices)


@dataclass(slots=True, eq=False)
class Move:
    """A group on its way from one decode worker to another; both ends by worker key.

        COPYING     its full blocks are copied while it runs on
        STOPPING    the source was told to stop it, and has not reported that it did

    The source stops it before any other worker may start it. What the source reports before is delivered, and
    the target goes on behind that.
    """

    group: Group
    source: str
    target: str
    copying: set[int] = field(default_factory=set)
    """Handles of the copies under way."""
    parts: dict[int, int] = field(default_factory=dict)
    """The handle that each choice goes on under; set once the source was told to stop."""


@dataclass(slots=True)
class Timeline:
    """When a session passed its marks, on the core's clock in seconds; None while it has not."""

    received_at: float
    dispatched_at: float | None = None
    first_token_at: float | None = None
    decode_at: float | None = None
    """The decode worker's first report; equal to first_token_at when that worker computed the prompt too."""
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A client's call that receives a session's events."""

    number: int
    """The session that the client named: 0 for Generate, more for Resume."""
    attached_at: float
    """When the router received it, on the core's clock in seconds."""
    grace_s: float
    """How long the session runs on when the call breaks, if it is the last one."""


@dataclass(slots=True, eq=False)
class Session:
    """One (tenant, request_id) while this router holds it, and for a while after."""

    sid: int
    """Numbers the sessions of this router in the order in which they began; a worker knows it as the run."""
    request: Request
    """The request as the session's first call brought it."""
    number: int
    """The client's count of calls: Generate is 0, each Resume one more. Greater than that if the request was
    taken back from another router."""
    goal: Slo
    """The SLO by which it is judged and ordered: what the request states, and what its program implies."""
    aim: Slo
    """The part of the goal that the fleet aims at: less than the whole once a request at risk is given up."""
    prefix_hits: PrefixHits
    timeline: Timeline
    choices: list[Choice]
    listeners: dict[int, Call] = field(default_factory=dict)
    """Calls that receive its events, oldest first."""
    attached_at: float = 0.0
    """When the last of its calls came."""
    left_by: int | None = None
    """The last call that broke: its grace counts."""
    given_up: bool = False
    """Ended because no call was left: a client that comes back after all goes on from what it received."""
    groups: list[Group] = field(default_factory=list)
    admitted: bool = False
    """Accepted, with a promise or at risk; or resumed after another router had accepted it."""
    decision: Decision | None = None
    predicted: Prediction | None = None
    """The prediction for its place in the queue, to learn from; None once it has another place."""
    ahead: QueueAhead | None = None
    """The queue ahead of it, as the store told; set while its tenant is being charged."""
    charged_tokens: float = 0.0
    """Virtual tokens; returned if the request is refused."""
    cached_tokens: int = 0
    path: Path = Path.UNSPECIFIED
    attempts: int = 0
    received_tokens: tuple[int, ...] = ()
    """Tokens of each choice that former sessions delivered: their text is unknown here."""
    failed_elsewhere: int = 0
    """Failed attempts that other routers reported to its client."""
    max_gap_s: float = 0.0
    error: str = ""
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    """Log-probabilities of the prompt that no former session delivered, in the prompt's order."""

    @property
    def next_prompt_index(self) -> int:
        """Return the first prompt token whose log-probability is missing, if they are requested."""
        if self.prompt_logprobs:
            return self.prompt_logprobs[-1].next_index
        return 1 + self.request.received_prompt_logprobs

    @property
    def lacks_prompt_logprobs(self) -> bool:
        """Return True if some prompt log-probabilities are missing."""
        if self.request.sampling.prompt_logprobs is None:
            return False
        return self.next_prompt_index < len(self.request.prompt_token_ids)

    @property
    def ended(self) -> bool:
        return self.timeline.ended_at is not None

    @property
    def open_choices(self) -> list[Choice]:
        return [choice for choice in self.choices if not choice.finish]

    @property
    def ttft_due_at(self) -> float:
        """Return when the first token is due by the stated TTFT; infinite if none is stated.

        Nothing is counted as late that asked for no TTFT. The queue orders it all the same, by a default:
        `Group.due_at`.
        """
        if self.request.slo.ttft_ms is None:
            return float("inf")
        return self.timeline.received_at + self.request.slo.ttft_ms / 1000

    def tpot_s(self) -> float | None:
        """Return the mean gap after the first token over all choices; None with fewer than two tokens."""
        gaps, total = 0, 0.0
        for choice in self.choices:
            if choice.first_at is not None and choice.last_at is not None:
                new = len(choice.token_ids) - self.received_tokens[choice.index]
                gaps, total = gaps + new - 1, total + choice.last_at - choice.first_at
        return total / gaps if gaps > 0 else None
