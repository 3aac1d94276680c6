"""The worker core's report after a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from scheduling.columns import PromptLogprobs, TokenColumns
from scheduling.cost_model import StepShape
from scheduling.request import FailureReason, PrefixSource
from scheduling.speculation import Drafter
from scheduling.value import value


class Mark(Protocol):
    """A point in a device's work."""

    def query(self) -> bool:
        """Return True if everything before it is done."""
        ...

    def synchronize(self) -> None:
        """Wait for that; other Python threads run meanwhile, and no core is kept busy."""
        ...

    def elapsed_time(self, later: Any, /) -> float:
        """Return the milliseconds from here to a later mark; both are done."""
        ...


@value
class Load:
    """The engine's state at the end of a step; fields as `WorkerLoad` in `worker.proto`."""

    step: int = 0
    running: int = 0
    waiting: int = 0
    pending_prefill_tokens: int = 0
    free_blocks: int = 0
    cached_blocks: int = 0
    context_tokens: int = 0
    preempted: int = 0


NO_LOAD = Load()


@dataclass(frozen=True, slots=True)
class Failure:
    """A sequence that ended without all its choices finishing."""

    handle: int
    reason: FailureReason
    message: str
    session: int = 0
    """With SUPERSEDED: the later session."""
    session_age_seconds: float = 0.0
    """With SUPERSEDED: how long ago the last call of the later session came; at most the true time."""


@dataclass(frozen=True, slots=True)
class Filled:
    """Blocks of a `Prefill` sequence, or of a loan, that will not change until released.

    `first_index` is the position in the sequence of `blocks[0]` (places in the pool). The last block of the
    prompt may be partial and comes with `complete`, in the report that carries the first tokens.
    """

    handle: int
    first_index: int
    blocks: tuple[int, ...]
    hashes: tuple[bytes, ...]
    complete: bool
    num_tokens: int = 0
    """Tokens in the sequence's blocks, up to the last of these blocks."""


@dataclass(frozen=True, slots=True)
class Received:
    """A `Receive` sequence has its blocks: the first `num_held` are cached, a copy may write to the rest."""

    handle: int
    blocks: tuple[int, ...]
    hashes: tuple[bytes, ...]
    """Expected identity of every block of the prompt, the partial last one included."""
    num_held: int


@dataclass(frozen=True, slots=True)
class Reading:
    """A sequence waits for blocks from elsewhere: a read may write to `blocks`, for `limit_s` at most.

    A loan may wait for blocks in other tiers, too.
    """

    handle: int
    blocks: tuple[int, ...]
    hashes: tuple[bytes, ...]
    """Expected identity of each block."""
    limit_s: float
    source: PrefixSource | None = None
    """The worker to fetch them from; None: they are in other tiers of this worker."""


@dataclass(frozen=True, slots=True)
class AdapterLoad:
    """Sequences wait for a LoRA adapter, which is to be loaded into `slot`; no step reads that one."""

    digest: str
    slot: int
    evicted: str | None
    """The digest of the adapter that was there; None if the slot was free."""


@value
class ComputedChunk:
    """Tokens of one group that a step has computed, from place `begin` of its context up to `end`."""

    handle: int
    begin: int
    end: int


@value
class Prefilled:
    """The prompt's KV is complete (computed, or fetched and verified)."""

    handle: int
    cached_tokens: int


@dataclass(slots=True)
class DraftCounts:
    """The tokens of one drafter in a step."""

    drafted: int = 0
    """Tokens that the step has verified."""
    accepted: int = 0
    """How many of them it drew too, so that they are outputs."""


@dataclass(slots=True)
class StepReport:
    """One step, for the whole batch; also sent without a step when only commands had effects.

    It collects what happens until it is taken. Load, tokens, and what else concerns the whole step are set
    then.
    """

    load: Load = NO_LOAD
    step_seconds: float = 0.0
    """0 when no step was run. The time of a draft model does not count."""
    drafting_seconds: float = 0.0
    """How long a draft model computed before the step."""
    tokens: TokenColumns = field(default_factory=TokenColumns)
    filled: list[Filled] = field(default_factory=list)
    filled_behind: Mark | None = None
    """Copies from the blocks of `filled` wait for it. Steps are over when the blocks that they filled are
    reported, but copies between the blocks of choices that go on elsewhere may be under way."""
    received: list[Received] = field(default_factory=list)
    received_behind: Mark | None = None
    """Copies to the blocks of `received` and `reads` wait for it: steps that used them before may be under
    way."""
    reads: list[Reading] = field(default_factory=list)
    adapter_loads: list[AdapterLoad] = field(default_factory=list)
    chunks: list[ComputedChunk] = field(default_factory=list)
    """The chunks of the step."""
    prefilled: list[Prefilled] = field(default_factory=list)
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    """Log-probabilities of prompt tokens, for requests that ask for them; in order for each handle."""
    failures: list[Failure] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    """Handles that gave up their blocks."""
    resumed: list[int] = field(default_factory=list)
    """Handles that run again."""
    parked: list[int] = field(default_factory=list)
    """Handles that a `StopAndCopy` has stopped: all of their tokens have been reported."""
    released: list[int] = field(default_factory=list)
    """Set by the hub, in what it sends to a router: handles among `freed` that neither it nor the worker gave
    up. Their last tokens have been reported, here or by the worker that computed their prompt."""
    freed: list[int] = field(default_factory=list)
    """Handles whose blocks have been returned; nothing is reported of them again."""
    cached_hashes: tuple[bytes, ...] = ()
    """Blocks that entered the prefix cache."""
    evicted_hashes: tuple[bytes, ...] = ()
    """Blocks that left it."""
    recomputed_tokens: int = 0
    """Tokens of the step that had been computed before, and were lost to a preemption."""
    drafts: dict[Drafter, DraftCounts] = field(default_factory=dict)
    """Drafted tokens of the step, by where they come from; only drafters that drafted any."""
    shape: StepShape | None = None
    """None when no step was run."""
    step_error: str = ""
    """The traceback of a step that failed as a whole, for the log; its sequences are among the failures."""

    @property
    def drafted_tokens(self) -> int:
        """Tokens of all drafters that the step has verified."""
        return sum(counts.drafted for counts in self.drafts.values())

    @property
    def accepted_drafts(self) -> int:
        """How many of them became output."""
        return sum(counts.accepted for counts in self.drafts.values())

    @property
    def has_events(self) -> bool:
        """True if anything happened that is worth a report, a step that was run or failed included."""
        return bool(
            self.filled or self.received or self.reads or self.prefilled or self.failures or self.preempted
            or self.resumed or self.parked or self.freed or self.step_seconds or self.step_error
            or self.adapter_loads
        )  # fmt: skip
