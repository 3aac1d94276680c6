"""A worker's engine: the core that live workers run, with a memory that holds tokens in place of KV.

Each slot of a block has the id and the place of the token whose KV it would be. A step reads the whole
context of every row, and finds out whether it is the row's own: KV that was handed over wrongly, freed too
early or taken from another request is noticed by the first step that uses it.

Steps take a drawn time. Commands that come meanwhile are taken in between two steps, as by the step thread;
reports reach the event loop a little later, in their order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from engine.core.admission import EngineLimits, refusal
from engine.core.batch import Batch, Step
from engine.core.commands import Command
from engine.core.memory.block_manager import BlockManager
from engine.core.memory.block_tables import HashedNames
from engine.core.report import StepReport
from engine.core.sequence import Choice, Goal, Phase, SequenceGroup
from engine.core.turns.worker_core import WorkerCore
from scheduling.columns import TokenColumns
from scheduling.cost_model import CostModel
from scheduling.policies.policy import Policy
from scheduling.request import SequenceSpec
from tests.dst.world.process import Process

VOCAB = 256
EOS = 2
FINGERPRINT = "weights"
HOP_S = (0.00005, 0.0005)
"""From the event loop to the step thread, or back."""


class WrongKV(AssertionError):
    """A step read KV that is not its row's own."""


def token_at(prompt: Sequence[int], choice: int, index: int) -> int:
    """Return the token that a prompt has at a place of its answer, on any worker."""
    if index == end_of(prompt, choice):
        return EOS
    mixed = prompt[0] * 1009 + prompt[-1] * 101 + len(prompt) * 17 + choice * 53 + index * (29 + index)
    return 3 + mixed % (VOCAB - 3)


def end_of(prompt: Sequence[int], choice: int) -> int:
    """Return the place of the token that ends an answer, if it may become so long."""
    return (prompt[0] + 11 * choice) % 24


def answer_length(prompt: Sequence[int], choice: int, max_tokens: int) -> int:
    return min(max_tokens, end_of(prompt, choice) + 1)


class TokenMemory:
    """Implements `kvtransfer.pools.pool.BlockPool`: [blocks, block_size, 2] of token ids and places."""

    fd = None

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.block_bytes = block_size * 8
        self._bytes = bytearray(num_blocks * self.block_bytes)
        self.slots = np.frombuffer(self._bytes, dtype=np.int32).reshape(num_blocks, block_size, 2)
        self.slots[:] = -1

    def block_bytes_view(self, block: int) -> memoryview:
        return memoryview(self._bytes)[block * self.block_bytes : (block + 1) * self.block_bytes]

    def write(self, table: Sequence[int], begin: int, token_ids: Sequence[int]) -> None:
        for place, token_id in enumerate(token_ids, begin):
            self.slots[table[place // self.block_size], place % self.block_size] = token_id, place

    def read(self, table: Sequence[int], end: int) -> list[int]:
        """Return the tokens at the first `end` places; -1 where a slot has another place's."""
        num_blocks = -(-end // self.block_size)
        found = self.slots[list(table[:num_blocks])].reshape(-1, 2)[:end]
        return np.where(found[:, 1] == np.arange(end), found[:, 0], -1).tolist()


class _NoSwap:
    """Implements `SwapMemory` without any room."""

    num_free = 0
    block_bytes = 1
    bytes_per_s = 1.0

    def store(self, blocks: Sequence[int]) -> list[int]:
        raise AssertionError("there is no room")

    def load(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        raise AssertionError("nothing was stored")

    def release(self, slots: Sequence[int]) -> None:
        assert not slots

    def check_integrity(self, held: Sequence[Sequence[int]]) -> None:
        assert not any(held)

    def check_some(self, held: Sequence[Sequence[int]]) -> None:
        assert not any(held)


class _NoRows:
    """Implements `RowTable`: nothing is kept for a row."""

    def join(self, choice: Choice) -> None: ...
    def leave(self, choice: Choice, last: int) -> None: ...
    def set_blocks(self, choice: Choice) -> None: ...
    def add_block(self, choice: Choice) -> None: ...


class _Tokens:
    """The rows of tokens of one report, as they grow."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int, int]] = []

    def add(self, choice: Choice, token_id: int) -> None:
        index = choice.num_outputs
        _, reason = choice.push(token_id)
        self.rows.append((choice.group.handle, choice.index, index, token_id, int(reason)))

    def add_first(self, group: SequenceGroup) -> None:
        first, choices = group.first_tokens, {choice.index: choice for choice in group.choices}
        assert first is not None
        for index, token_id in zip(first.choices, first.token_ids, strict=True):
            if index in choices:
                self.add(choices[index], token_id)

    def taken(self) -> TokenColumns:
        rows, self.rows = self.rows, []
        if not rows:
            return TokenColumns()
        handles, choices, indexes, token_ids, reasons = map(list, zip(*rows, strict=True))
        return TokenColumns(handles, choices, indexes, token_ids, reasons)


class Engine:
    """The step loop of one process. `on_report` is called on the event loop."""

    def __init__(
        self,
        process: Process,
        *,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        token_budget: int,
        max_context: int,
        policy: Policy,
        cost: CostModel,
        step_s: tuple[float, float],
        on_report: Callable[[StepReport], None],
    ) -> None:
        self._process = process
        self._on_report = on_report
        self._step_s = step_s
        self.cost = cost
        self.memory = TokenMemory(num_blocks, block_size)
        self.blocks = BlockManager(num_blocks, block_size)
        limits = EngineLimits(VOCAB, max_context, max_num_seqs, token_budget, (EOS,))
        self.core = WorkerCore(
            self.blocks,
            HashedNames(FINGERPRINT, block_size),
            _NoSwap(),
            _NoRows(),
            limits=limits,
            policy=policy,
            cost=cost,
            refuse=lambda spec: refusal(spec, limits, has_text=True),
            new_choice=lambda group, index: group.new_choice(index, None),
        )
        self._tokens = _Tokens()
        self._inbox: list[Command] = []
        self._is_stepping = False
        self._wakes = 0
        self._reported_at = 0.0

    @property
    def batch(self) -> Batch:
        return self.core.batch

    @property
    def is_idle(self) -> bool:
        return not (self._is_stepping or self._inbox)

    def choices_of(self, handle: int) -> tuple[int, ...]:
        """Return the choices that a sequence decodes, or will; none if it only hands its blocks over."""
        groups = self.core.groups.roster.pieces(handle)
        return groups[0].spec.choices if groups and groups[0].goal is Goal.DECODE else ()

    def submit(self, command: Command) -> None:
        """Take a command in, between two steps."""
        self._inbox.append(command)
        if not self._is_stepping and len(self._inbox) == 1:
            self._wake(self._process.draw("hop", *HOP_S))

    def _wake(self, seconds: float) -> None:
        self._wakes += 1
        self._process.scheduler.after(seconds, self._process.do, self._woken, self._wakes)

    def _woken(self, number: int) -> None:
        if number == self._wakes and not self._is_stepping:
            self._turn()

    def _turn(self) -> None:
        now_s = self._process.clock()
        inbox, self._inbox = self._inbox, []
        for command in inbox:
            self.core.apply(command, now_s)
        if self.core.groups.report.parked:
            self._report()
        self._make_room(now_s)
        plan = self.core.plan(now_s, now_s)
        if plan.num_decodes or plan.chunks:
            step = self.core.begin(plan)
            self.core.cover(step)
            self._is_stepping = True
            took_s = self._process.draw("step", *self._step_s)
            self._process.scheduler.after(took_s, self._process.do, self._end, step, took_s)
        elif plan.wait_s < math.inf:
            self._wake(max(plan.wait_s, 0.001))
        self._report()

    def _make_room(self, now_s: float) -> None:
        self.core.grow_rows(now_s)
        num_rows = self.batch.num_rows
        for group in self.core.start_waiting():
            self._adopt(group)
        if self.batch.num_rows > num_rows:
            self.core.grow_rows(now_s)

    def _adopt(self, group: SequenceGroup) -> None:
        """Its KV has come, and its first tokens with it."""
        self.core.adopt(group)
        self._tokens.add_first(group)
        self._copy(self.core.go_on(group))

    def _copy(self, copies: Sequence[tuple[int, int]]) -> None:
        for source, target in copies:
            self.memory.slots[target] = self.memory.slots[source]

    # A step is over

    def _end(self, step: Step, took_s: float) -> None:
        self._is_stepping = False
        core, now_s = self.core, self._process.clock()
        self._compute_chunks(step)
        core.join(step)
        drawn = [
            self._draw(choice, int(place)) for choice, place in zip(step.choices, step.positions, strict=True)
        ]
        self._copy(core.advance(step))
        core.mark_written(step)
        core.count_tokens(step, now_s)
        wanted = []
        for place, (choice, token_id) in enumerate(zip(step.choices, drawn, strict=True)):
            if not choice.is_over:
                self._tokens.add(choice, token_id)
                wanted.append(place)
        size = self.memory.block_size
        fills = (step.positions + 1) % size == 0
        fills[step.num_decodes :] = True
        filled = [step.choices[place] for place in wanted if fills[place]]
        finished = [step.choices[place] for place in wanted if step.choices[place].is_finished]
        for group in core.finish(step, filled, finished):
            self._adopt(group)
        core.groups.room.give_back(step.held)
        core.groups.report.step_seconds = took_s
        core.check_integrity(is_whole=False)
        self._turn()

    def _compute_chunks(self, step: Step) -> None:
        for chunk in step.chunks:
            group = chunk.group
            if group.phase is not Phase.ENDED:
                context = group.context[chunk.begin : chunk.end].tolist()
                self._check(group.spec, group.block_table, group.context[: chunk.begin].tolist())
                self.memory.write(group.block_table, chunk.begin, context)

    def _draw(self, choice: Choice, place: int) -> int:
        """Write the KV of a row's newest token, look at all of its context, and return the next token."""
        group = choice.group
        table = choice.block_table or group.block_table
        if group.phase is Phase.ENDED or not table:
            return 0
        context = choice.tokens(0, place + 1)
        self.memory.write(table, place, context[place:])
        self._check(group.spec, table, context)
        return token_at(group.spec.prompt_token_ids, choice.index, choice.num_outputs)

    def _check(self, spec: SequenceSpec, table: Sequence[int], context: Sequence[int]) -> None:
        found = self.memory.read(table, len(context))
        if found != list(context):
            first = next(place for place, token in enumerate(context) if found[place] != token)
            raise WrongKV(
                f"{self._process.name}: {spec.fence.request_id} read token {found[first]} at place {first}, "
                f"where its own is {context[first]}"
            )

    # Reports

    def _report(self) -> None:
        if not self.core.groups.report.has_events:
            return
        report, events = self.core.take_report(), self.blocks.take_cache_events()
        report.load = self.core.load(0)
        report.tokens = self._tokens.taken()
        report.cached_hashes, report.evicted_hashes = events.added, events.removed
        now = self._process.scheduler.now
        self._reported_at = max(self._reported_at, now + self._process.draw("hop", *HOP_S))
        self._process.scheduler.at(self._reported_at, self._process.do, self._on_report, report)
