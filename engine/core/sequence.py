"""Groups of choices and where they are in their life.

    Decode    WAITING → PREFILLING → RUNNING → (ended)
    Prefill   WAITING → PREFILLING → HELD    → (ended by Release)
    Receive   WAITING → RECEIVING ─ KVArrived → ARRIVED → (PREFILLING →) RUNNING → (ended)
              (ahead of a sequence: RECEIVING ─ KVArrived → (ended), its blocks cached)
                            └ Cancel → ABANDONED ─ KVArrived or KVFailed → (ended)

Decode and Prefill, if the prefix goes on in blocks of other tiers
              WAITING → READING ─ BlocksRead → ARRIVED → PREFILLING → …
                            └ Cancel → ABANDONED ─ BlocksRead → (ended)
              WAITING → FOLLOWING ─ BlocksRead of another → READING, FOLLOWING or ARRIVED
              PREEMPTED → READING or FOLLOWING, as if it was new

    A group that is to decode, and gave up its blocks to others, comes back before any new group starts:
    ARRIVED, PREFILLING, RUNNING → PREEMPTED → PREFILLING          its tokens are computed again
                         RUNNING → SWAPPED   → RUNNING             its blocks wait in host memory

All choices of a group share the same tokens up to the end of the prompt (and of what was delivered before a
resume): they are computed once, in the group's block table. Running choices have a table each. Choices that
are preempted to be computed again have different outputs by then: each goes on as a group of its own.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.core.due_times import Due
from model_output.grammar.grammar import CompiledGrammar, Follower
from model_output.text.detokenizer import TextStream
from model_output.text.output import OutputRules, OutputStream
from scheduling.columns import TokenColumns
from scheduling.memory.block_hash import hash_block
from scheduling.request import FinishReason, SequenceSpec


class Goal(enum.Enum):
    """The step that follows once the prompt is computed."""

    HAND_OVER = "hand over"
    """Its blocks are kept for another worker, until `Release`."""
    DECODE = "decode"
    CACHE = "cache"
    """Only its blocks are wanted, by a sequence that comes later."""


class Phase(enum.Enum):
    WAITING = "waiting"
    """It has no blocks yet, and waits for its turn."""
    RECEIVING = "receiving"
    """Another worker's KV is copied into its blocks."""
    READING = "reading"
    """Blocks come from another tier, or from a worker that lends them."""
    FOLLOWING = "following"
    """Another group reads the blocks that it needs next from another tier."""
    ABANDONED = "abandoned"
    """Cancelled, but a copy may still write to the blocks."""
    ARRIVED = "arrived"
    """The copy is over, and it waits for rows of the batch."""
    PREFILLING = "prefilling"
    HELD = "held"
    """It only keeps its blocks for another worker, until `Release`."""
    RUNNING = "running"
    PREEMPTED = "preempted"
    """It gave up its blocks; its tokens are computed again."""
    SWAPPED = "swapped"
    """Its blocks are in host memory."""
    ENDED = "ended"
    """A launched step may still compute for it; nobody looks at what."""


@dataclass(frozen=True, slots=True)
class Swapped:
    """A group's blocks in host memory: each once, however many choices share it."""

    slots: tuple[int, ...]
    hashes: tuple[bytes | None, ...]
    """The hash each block was registered under, since it may still be in the pool."""
    tables: tuple[tuple[int, ...], ...]
    """Per choice: indexes of its blocks in the other two."""


@dataclass(slots=True, eq=False, repr=False)
class Choice:
    """One choice: its output, and its own blocks once it runs."""

    group: SequenceGroup
    index: int
    """Which of the choices that the request asks for it is."""
    output: OutputStream
    follower: Follower | None = None
    """The state of its grammar, if it has one."""
    limit: int = field(init=False)
    """The number of output tokens with which it ends, unless it ends before."""
    output_token_ids: list[int] = field(init=False)
    is_finished: bool = False
    due: Due = field(default_factory=Due)
    """When it left the batch, or joins it."""
    row: int = -1
    """Its row of the batch while it runs."""
    block_table: list[int] = field(default_factory=list)
    num_reserved_blocks: int = 0
    num_registered_blocks: int = 0
    last_hash: bytes = b""
    """Identity of the last registered block, from which the next one's follows."""

    def __post_init__(self) -> None:
        self.limit = self.group.rules.limit
        self.output_token_ids = list(self.group.spec.output_token_ids)

    @property
    def num_outputs(self) -> int:
        """Output tokens so far; those in flight do not count."""
        return len(self.output_token_ids)

    @property
    def is_over(self) -> bool:
        """True if no more tokens of it are wanted."""
        return self.is_finished or self.group.phase is Phase.ENDED

    def push(self, token_id: int) -> tuple[str, FinishReason]:
        """Append a token; return its text, and why it is the last one, if it is."""
        self.output_token_ids.append(token_id)
        text, reason = self.output.push(token_id)
        self.is_finished = reason is not FinishReason.NONE
        return text, reason

    def hash_next_block(self, block_size: int) -> bytes:
        """The identity of the first block that is not registered yet; all its tokens are known."""
        begin = self.num_registered_blocks * block_size
        return hash_block(self.last_hash, self.tokens(begin, begin + block_size))

    def tokens(self, begin: int, end: int) -> list[int]:
        """Return the known tokens at places `begin` to `end` of the sequence, prompt and output."""
        prompt = self.group.spec.prompt_token_ids
        from_prompt = prompt[begin:end]
        num_prompt = len(prompt)
        return [*from_prompt, *self.output_token_ids[max(0, begin - num_prompt) : max(0, end - num_prompt)]]


@dataclass(slots=True, eq=False, repr=False)
class SequenceGroup:
    """The group made from one `SequenceSpec`, or a piece of that group; its `key` is unique."""

    key: int
    spec: SequenceSpec
    goal: Goal
    rules: OutputRules
    block_hashes: Sequence[bytes]
    """Hashes of the context's full blocks."""
    arrived_s: float
    arrival: int = field(init=False)
    """Tells who came first."""
    phase: Phase = Phase.WAITING
    _context: NDArray[np.int64] | None = None
    num_context_tokens: int = field(init=False)
    """Tokens to have in the KV cache before the first new one: the prompt and what was delivered."""
    block_table: list[int] = field(default_factory=list)
    num_reserved_blocks: int = 0
    num_computed_tokens: int = 0
    """Chunks count from when they are launched."""
    pending_chunks: list[int] = field(default_factory=list)
    """Where in the context the chunks begin that were launched and are not over."""
    num_prompt_rows: int = 0
    """The number of leading prompt positions whose logits are needed, each for the token after it."""
    num_launched_prompt_rows: int = 0
    """The number of these that a launched step has computed; they are not computed again."""
    num_cached_tokens: int = 0
    """How many of the computed tokens came from the prefix cache."""
    num_known_tokens: int = 0
    """How many had been computed before a preemption lost them."""
    num_filled_blocks: int = 0
    """Leading blocks that were reported as filled (`HAND_OVER`) or registered."""
    first_tokens: TokenColumns | None = None
    """Sampled by the source of the handoff, and not to be sampled again."""
    first_token_s: float = 0.0
    """When that was."""
    grammar: CompiledGrammar | None = None
    """Set before it gets blocks, if its output has a grammar."""
    receives: bool = False
    """Its KV comes from elsewhere, once it has blocks for it."""
    lacks_newest: bool = False
    """KV from another worker lacks that of the newest token, which is computed here."""
    swapped: Swapped | None = None
    choices: list[Choice] = field(default_factory=list)
    """Made when the context is complete; each leaves when it ends."""

    def __post_init__(self) -> None:
        self.arrival = self.key
        self.num_context_tokens = len(self.spec.prompt_token_ids) + len(self.spec.output_token_ids)
        if self.spec.sampling.prompt_logprobs is not None:
            self.num_prompt_rows = len(self.spec.prompt_token_ids) - 1

    @property
    def handle(self) -> int:
        return self.spec.handle

    @property
    def context(self) -> NDArray[np.int64]:
        """The ids of the context's tokens; they are put together when they are first asked for."""
        if self._context is None:
            outputs = self.choices[0].output_token_ids if self.is_resuming else self.spec.output_token_ids
            self._context = np.array((*self.spec.prompt_token_ids, *outputs), dtype=np.int64)
        return self._context

    def extend_context(self, num_outputs: int) -> None:
        """Let the context include `num_outputs` tokens of the only choice, which is to be computed again."""
        self._context = None
        self.num_context_tokens = len(self.spec.prompt_token_ids) + num_outputs

    @property
    def num_received_tokens(self) -> int:
        """Tokens whose KV comes from elsewhere, if any does."""
        return self.num_context_tokens - self.lacks_newest

    @property
    def num_written_tokens(self) -> int:
        """The number of leading tokens whose KV is written, so that anything may read it."""
        if not self.pending_chunks:
            return self.num_computed_tokens
        return min(self.num_computed_tokens, self.pending_chunks[0])

    @property
    def num_rows(self) -> int:
        """Choices that run, or will."""
        return len(self.choices) or len(self.spec.choices)

    @property
    def is_resuming(self) -> bool:
        """True if its choices ran before; they have their output, and go on with it."""
        return self.phase is not Phase.RUNNING and bool(self.choices)

    @property
    def has_begun(self) -> bool:
        """True if any work has gone into it."""
        if self.is_resuming or self.phase not in (Phase.WAITING, Phase.PREFILLING):
            return True
        return self.num_computed_tokens > self.num_cached_tokens

    def new_choice(self, index: int, text: TextStream | None) -> Choice:
        """Return a choice as it is before its first token here."""
        follower = None if self.grammar is None else self.grammar.begin()
        choice = Choice(self, index, self.new_output(text), follower)
        # Delivered output has had its effect on the text, as if it had been generated here.
        for token_id in self.spec.output_token_ids:
            choice.output.push(token_id)
        return choice

    def new_output(self, text: TextStream | None) -> OutputStream:
        """Return the output of a choice that has no token; without `text` it stays without text."""
        return OutputStream(self.rules, text)

    def prompt_rows(self, begin: int, end: int) -> range:
        """Return the positions from `begin` to `end` whose logits the prompt's own tokens still need."""
        first = max(begin, self.num_launched_prompt_rows)
        return range(first, max(first, min(end, self.num_prompt_rows)))

    def piece(self, key: int, choice: Choice) -> SequenceGroup:
        """Return a group for one running choice alone, which is taken over."""
        piece = SequenceGroup(key, self.spec, self.goal, self.rules, self.block_hashes, self.arrived_s)
        piece.arrival = self.arrival
        piece.choices = [choice]
        piece.num_launched_prompt_rows = piece.num_prompt_rows
        choice.group = piece
        return piece

    @property
    def num_remaining_tokens(self) -> int:
        """Tokens of the context that are still to be computed."""
        return self.num_context_tokens - self.num_computed_tokens
