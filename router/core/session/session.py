"""One request while this router holds it: its choices with what was delivered, and the groups that run them.

    group:  NEW → ENQUEUEING → WAITING → SETTLING → RUNNING → ENDED
                       ↑           ↑         │          │
                       └─ STRANDED ←─────────┘          └→ next attempt: new groups

A group is the unit that is queued, leased and dispatched: choices that share all their tokens. It ends once,
and with it whatever it holds of the store is returned.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

from scheduling.admission.admission import Decision
from scheduling.admission.prediction import Prediction, QueueAhead
from scheduling.columns import PromptLogprobs, TokenColumns
from scheduling.request import FinishReason, Matched, Path, SamplingParams, Slo, StopRules

if TYPE_CHECKING:
    from router.core.events import Granted

MAX_ATTEMPTS = 3
"""Attempts that may fail at their workers; then the request itself is taken to be at fault."""
MAX_LOST = 5
"""Attempts that may fail at their workers or lose them, over all routers. Workers also die of other things:
in an hour in which one was killed every seven seconds, two of 20 746 requests had three die under them."""
MAX_CALLS = 8
"""Calls that may hear one request at once; one more ends the oldest, which may be a broken connection."""
MAX_FAILURES = 10
"""Attempts that fail at one router for whatever reason: what breaks links, and no worker, ends too."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Of one token; the alternatives most likely first."""

    logprob: float
    top_token_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


class Phase(enum.Enum):
    """Where a group is on its way."""

    NEW = "new"
    ENQUEUEING = "enqueueing"
    """The store was asked for a place in the queue."""
    WAITING = "waiting"
    SETTLING = "settling"
    """Granted; the store was asked for a block lease."""
    RUNNING = "running"
    STRANDED = "stranded"
    """Admitted, but in no queue: it rests, the store is away or no worker fits; tried again soon."""
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Choice:
    """One continuation, as delivered. Element i of each list belongs to index i.

    `texts` and `logprobs` of tokens that a former session delivered are empty; those of the newest tokens may
    be missing until `pad`.
    """

    index: int
    token_ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    finish: FinishReason = FinishReason.NONE
    matched: Matched | None = None
    """Which stop rule ended it, if one did."""
    first_at: float | None = None
    last_at: float | None = None
    group: Group | None = None

    @property
    def open(self) -> bool:
        """More tokens are to come."""
        return self.finish is FinishReason.NONE

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
    """Choices that travel together, and one attempt at running them at a time."""

    key: str
    session: Session
    choices: list[Choice]
    blocks: int
    work_tokens: int
    expected_tokens: int = 0
    """Output of all its choices, as long as such outputs are."""
    due_at: float = 0.0
    """By which the queue orders it within its class."""
    later_s: float = 0.0
    """By how much it is put behind: its promise was given up when capacity died, or its tenant has had more
    than its share."""
    is_promoted: bool = False
    """Batch work that goes first, so that batch has its share."""
    failures: int = 0
    """Attempts that failed, those of the groups it was split from included; and why the last of them did."""
    failed_with: str = ""
    brought: int = 0
    """Of these, what its client was told of by other routers."""
    lost_with: tuple[str, ...] = ()
    """Workers that were lost in one of these, and have not been seen since."""
    handed_by: tuple[str, ...] = ()
    """Workers whose KV did not arrive in one of these."""
    rests_until: float = 0.0
    """Not to be tried again before: what failed more than once fails again at once."""
    pardoned: int = 0
    """Failures that were not its doing: their workers live."""
    sent_as: int = 0
    """The session that its attempt was dispatched under."""
    preempted_at: float | None = None
    """Since when its worker has had no blocks for it."""
    migrated_at: float = float("-inf")
    """When it was last taken from a worker that had none, or gave way to a higher class."""
    attempt: int = 0
    """Numbers fences; counts what was dispatched, also of the groups it was split from."""
    num_copies: int = 0
    """How many of these fences were only used to copy blocks ahead."""
    num_stays: int = 0
    """How often it could not be moved from a worker that drains."""
    phase: Phase = Phase.NEW
    asked_at: float = 0.0
    """When a place in the queue was last asked for."""
    stranded_at: float | None = None
    early_grant: Granted | None = None
    """It came before the answer that there is a place."""
    handle: int = 0
    prefill_key: str | None = None
    """Worker that computes the prompt; the decode worker itself when aggregated."""
    decode_key: str | None = None
    held_key: str | None = None
    """Where its grant, while it is settled, holds room."""
    credit_on: str | None = None
    lease_on: str | None = None
    decode_reported: bool = False
    early: list[TokenColumns] = field(default_factory=list)
    """Tokens from the decode worker that arrived before the prefill worker had reported the whole prompt."""
    avoided: frozenset[str] = frozenset()

    def part(self) -> None:
        """It is over: its choices know it no more. Otherwise they and their group would hold each other, and
        stay in memory until a garbage collection.
        """
        for choice in self.choices:
            choice.group = None

    @property
    def num_seqs(self) -> int:
        return len(self.choices)

    @property
    def held_against(self) -> int:
        """Failures that may be its own doing."""
        return self.failures - self.pardoned

    @property
    def delivered_tokens(self) -> int:
        """Output of its choices so far."""
        if len(self.choices) == 1:
            return len(self.choices[0].token_ids)
        return sum(len(choice.token_ids) for choice in self.choices)

    @property
    def output_token_ids(self) -> tuple[int, ...]:
        """Delivered already; only a single choice has any."""
        return tuple(self.choices[0].token_ids) if len(self.choices) == 1 else ()


@dataclass(slots=True)
class Timeline:
    """When a session passed its marks, on the core's clock in seconds; None while it has not."""

    received_at: float
    dispatched_at: float | None = None
    first_token_at: float | None = None
    decode_at: float | None = None
    """The decode worker's first report; equal to first_token_at when it prefilled itself."""
    ended_at: float | None = None


@dataclass(slots=True, eq=False)
class Session:
    """One (tenant, request_id) while this router holds it, and for a while after."""

    sid: int
    tenant: str
    request_id: str
    number: int
    """The client's count of calls: Generate is 0, each Resume one more."""
    digest: bytes
    prompt_token_ids: Sequence[int]
    sampling: SamplingParams
    stop: StopRules
    slo: Slo
    prefix_hits: Mapping[str, int]
    timeline: Timeline
    choices: list[Choice]
    listeners: dict[int, float] = field(default_factory=dict)
    """Calls that receive its events, oldest first, and how long it runs on when each of them breaks."""
    left_by: int | None = None
    """The last call that broke: its grace is the one that counts."""
    given_up: bool = False
    """Ended because nobody listened: a client that comes back after all goes on from what it received."""
    groups: list[Group] = field(default_factory=list)
    admitted: bool = False
    decision: Decision | None = None
    predicted: Prediction | None = None
    work_ahead_tokens: int = 0
    """At admission."""
    ahead: QueueAhead | None = None
    """While its tenant is being charged."""
    charged_tokens: float = 0.0
    """Virtual tokens; to be returned if it is refused."""
    aim: Slo = field(init=False)
    """The part of the SLO that the fleet aims at: less than the whole once a request at risk is given up."""
    cached_tokens: int = 0
    path: Path = Path.UNSPECIFIED
    attempts: int = 0
    received_tokens: tuple[int, ...] = ()
    """Per choice, tokens that former sessions delivered: their text is unknown here."""
    failed_elsewhere: int = 0
    """Failed attempts that other routers reported to its client."""
    max_gap_s: float = 0.0
    error: str = ""
    received_prompt_logprobs: int = 0
    """The number of prompt log-probabilities that former sessions delivered; they are unknown here."""
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    """All log-probabilities received since, in the prompt's order."""

    @property
    def next_prompt_index(self) -> int:
        """The first prompt token whose log-probability is still missing, if they are requested."""
        if self.prompt_logprobs:
            return self.prompt_logprobs[-1].next_index
        return 1 + self.received_prompt_logprobs

    @property
    def lacks_prompt_logprobs(self) -> bool:
        """Some prompt log-probabilities are still missing."""
        if self.sampling.prompt_logprobs is None:
            return False
        return self.next_prompt_index < len(self.prompt_token_ids)

    def __post_init__(self) -> None:
        self.aim = self.slo

    @property
    def name(self) -> tuple[str, str]:
        return self.tenant, self.request_id

    @property
    def ended(self) -> bool:
        return self.timeline.ended_at is not None

    @property
    def is_started(self) -> bool:
        """A worker has had it, here or in a former session."""
        return self.timeline.dispatched_at is not None or self.number > 0

    @property
    def due_at(self) -> float:
        """When the first token was promised; infinite without a promise."""
        if self.slo.ttft_ms is None:
            return float("inf")
        return self.timeline.received_at + self.slo.ttft_ms / 1000

    def group_key(self, first_choice: int) -> str:
        """Names a group in the store. Escaped: no two groups share a name, whatever clients choose."""
        tenant, request_id = quote(self.tenant, safe=""), quote(self.request_id, safe="")
        suffix = f"#{first_choice}" if first_choice else ""
        return f"{tenant}/{request_id}/{self.number}{suffix}"

    def tpot_s(self) -> float | None:
        """Mean gap after the first token over all choices; None with fewer than two tokens."""
        gaps, total = 0, 0.0
        for choice in self.choices:
            if choice.first_at is not None and choice.last_at is not None:
                new = len(choice.token_ids) - self.received_tokens[choice.index]
                gaps, total = gaps + new - 1, total + choice.last_at - choice.first_at
        return total / gaps if gaps > 0 else None
