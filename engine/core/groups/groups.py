"""The groups that a worker has, by phase: what commands do to them between two steps, and which are next."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from engine.core.adapters import AdapterSlots
from engine.core.admission import Admission, EngineLimits, Refuse
from engine.core.batch import Batch
from engine.core.commands import (
    AdapterLoaded,
    BlocksRead,
    Cancel,
    Decode,
    GrammarReady,
    HandBack,
    KVArrived,
    KVFailed,
    PreCopy,
    Prefill,
    Receive,
    Release,
    SequenceCommand,
    StopAndCopy,
)
from engine.core.due_times import after_first_token
from engine.core.groups.adapter_waits import AdapterWaits
from engine.core.groups.arrivals import Arrivals
from engine.core.groups.lending import Lending
from engine.core.groups.moves import Moves
from engine.core.groups.queues import Queues
from engine.core.groups.registry import GroupRegistry
from engine.core.memory.block_pool import BlockPool
from engine.core.memory.block_tables import BlockTables
from engine.core.memory.forecast import MemoryForecast
from engine.core.memory.loans import Loans
from engine.core.memory.preempter import Preempter
from engine.core.memory.prefix_reads import KVLinks, KVTiers, PrefixReads
from engine.core.memory.room import Room
from engine.core.memory.swap_memory import SwapMemory
from engine.core.report import Failure, StepReport
from engine.core.sequence import Choice, Goal, Phase, SequenceGroup
from scheduling.cost.cost_model import CostModel
from scheduling.memory.preemption import Means
from scheduling.request import FailureReason, ReceiveKind, SequenceSpec
from scheduling.step import PrefillWork

NewChoice = Callable[[SequenceGroup, int], Choice]
"""Makes one choice of a group, as it is before its first token here."""


class Groups:
    """The groups of a worker, as commands and steps change them."""

    def __init__(
        self,
        tables: BlockTables,
        batch: Batch,
        blocks: BlockPool,
        swap: SwapMemory,
        limits: EngineLimits,
        refuse: Refuse,
        new_choice: NewChoice,
        tiers: KVTiers | None,
        links: KVLinks | None,
        adapters: AdapterSlots,
    ) -> None:
        self._tables = tables
        self._batch = batch
        self._blocks = blocks
        self._new_choice = new_choice
        self._keys = itertools.count(1)
        self._admission = Admission(tables, blocks.num_blocks, limits, self._keys, refuse)
        self._forecast = MemoryForecast(blocks)
        self._preempter = Preempter(tables, batch, blocks, swap)
        self._room = Room(tables, self._forecast, self._preempter)
        self.queues = Queues(batch)
        self._adapter_waits = AdapterWaits(adapters, self.queues)
        self._registry = GroupRegistry(
            tables, batch, self.queues, self._forecast, self._preempter, self._room, self._adapter_waits
        )
        prefix_reads = PrefixReads(tiers, links, tables)
        self._arrivals = Arrivals(self._registry, self.queues, tables, prefix_reads)
        self._lending = Lending(Loans(blocks, tiers), self._registry, self._room)
        self._moves = Moves(self._registry, tables, self._keys)

    def __getitem__(self, key: int) -> SequenceGroup:
        """Return a group that is being prefilled."""
        return self.queues.prefilling[key]

    @property
    def report(self) -> StepReport:
        """Events since the last report."""
        return self._registry.report

    def take_report(self) -> StepReport:
        """Return what happened since the last report."""
        return self._registry.take_report()

    def apply(self, command: SequenceCommand, now_s: float, cost: CostModel) -> None:
        """Carry out one command; its effects are in the report."""
        if self._lending.apply(command):
            return
        match command:
            case Prefill(spec):
                self._enter(spec, Goal.HAND_OVER, now_s)
            case Decode(spec):
                self._enter(spec, Goal.DECODE, now_s)
            case Receive(spec, kind):
                goal = Goal.CACHE if kind is ReceiveKind.AHEAD else Goal.DECODE
                self._enter(spec, goal, now_s, receives=kind)
            case GrammarReady() | AdapterLoaded():
                self._end_wait(command)
            case KVArrived() | KVFailed() | BlocksRead():
                self._arrivals.end_copy(command, now_s, cost)
            case Release(handle):
                self._registry.release(handle)
            case Cancel(handle):
                self._registry.cancel(handle)
            case HandBack():
                self._registry.hand_back()
            case PreCopy() | StopAndCopy():
                self._moves.offer(command, now_s)

    def start_waiting(self, cost: CostModel) -> list[SequenceGroup]:
        """Let groups in, first come first served, while memory and the batch have room.

        Preempted groups come before new ones. Return the groups whose KV is complete.
        """
        if not self.queues.has_any:
            return []
        has_room = self._resume_preempted(cost)
        for group in list(self.queues.arrived.values()):
            if not self.queues.has_rows(group):
                break
            del self.queues.arrived[group.key]
            self.queues.begin_prefill(group)
        if has_room:
            self._admit_waiting(cost)
        prefilling = self.queues.prefilling.values()
        return [group for group in prefilling if group.num_written_tokens == group.num_context_tokens]

    def num_turns_in_vain(self) -> int | None:
        """Return for how many turns without news no group would be let in; None: for any number of them.

        `start_waiting` has let in what there was room for.
        """
        head = self._refused_head()
        return None if head is None else self._room.num_turns_in_vain(head)

    def pass_turns(self, num_turns: int) -> None:
        """Turns have passed in which no group was let in."""
        if self._refused_head() is not None:
            self._room.pass_turns(num_turns)

    def prefill_work(self, now_s: float, *, chunks_follow: bool) -> Sequence[PrefillWork]:
        """Return what is to be computed, after taking what has become cached in the meantime.

        Unless `chunks_follow`, prompts with a chunk in flight are left out.
        """
        for group in self.queues.prefilling.values():
            if self._tables.extend_from_cache(group):
                self._registry.publish_blocks(group)
        return self.queues.prefill_work(now_s, chunks_follow=chunks_follow)

    def finish_prefill(self, group: SequenceGroup) -> bool:
        """Make the choices of a group whose context is complete, or will be when the step in flight is over.

        They take the rows promised to them. Return True if the group has not run before.
        """
        self.queues.leave_prefill(group)
        is_new = not group.is_resuming
        if is_new:
            group.choices = [self._new_choice(group, index) for index in group.spec.choices]
            if group.first_tokens is not None:
                due = after_first_token(group.spec.tpot_ms, group.spec.itl_ms, group.first_token_s)
                for choice in group.choices:
                    choice.due = due
        group.phase = Phase.RUNNING
        return is_new

    def mark_chunk_written(self, group: SequenceGroup) -> None:
        """Take in that the group's chunk that was launched first is over: its KV is written."""
        group.pending_chunks.pop(0)
        # Choices that run have the blocks by now, and share them as they do their own.
        if group.phase is not Phase.ENDED and group.block_table:
            self._registry.publish_blocks(group)

    def keep_for_handoff(self, group: SequenceGroup) -> None:
        """First tokens are out: keep the blocks for the handoff and nothing else."""
        group.choices = []
        group.phase = Phase.HELD
        self.report.adapter_loads += self._adapter_waits.release(group)

    def start_choices(self, group: SequenceGroup) -> list[tuple[int, int]]:
        """First tokens are drawn: give each choice that goes on a block table; the others leave.

        Return the (source, target) copies to make before the next step.
        """
        going = [choice for choice in group.choices if not choice.is_finished]
        for choice in group.choices:
            if choice.is_finished:
                self._forecast.observe(choice)
                self._batch.leave(choice)
        group.choices = going
        if not going:
            self._registry.end(group)
            return []
        copies = self._tables.start_choices(group)
        for choice in going:
            self._batch.table.set_blocks(choice)
        return copies

    @property
    def is_short_of_blocks(self) -> bool:
        """True if `grow_rows` has to preempt."""
        return self._preempter.num_short() > 0

    def grow_rows(self, cost: CostModel, now_s: float) -> None:
        """Give a block to each choice whose newest token begins one; where there are none, preempt."""
        while (num_short := self._preempter.num_short()) > 0:
            victims = self._registry.all()
            chosen = self._preempter.choose(victims, num_short, cost, now_s)
            victim = next(group for group in victims if group.key == chosen.key)
            self._preempt(victim, chosen.means)
        positions = self._batch.positions
        growing = [
            choice
            for choice in self._batch.rows_at_block_start()
            if self._tables.lacks_block(choice, int(positions[choice.row]))
        ]
        if growing:
            self._tables.grow(growing, [1] * len(growing))
            for choice in growing:
                self._batch.table.add_block(choice)

    def cover_draft(self, choice: Choice, num_tokens: int) -> int:
        """Return how many of so many tokens behind a choice's newest one have blocks, some of them new.

        Blocks are not taken where the running choices are about to need them.
        """
        last = int(self._batch.positions[choice.row]) + num_tokens
        num_lacking = self._tables.num_lacking(choice, last)
        if num_lacking <= 0:
            return num_tokens
        num_new = max(0, num_lacking - choice.num_reserved_blocks)
        if num_new and self._blocks.num_available_blocks < num_new + self._batch.num_rows:
            return num_tokens - self._tables.num_uncovered(choice, last)
        self._tables.grow([choice], [num_lacking])
        self._batch.table.set_blocks(choice)
        return num_tokens

    def report_prefilled(self, group: SequenceGroup) -> None:
        """Report that a group's context is complete."""
        self._registry.report_prefilled(group)

    def fail(
        self, group: SequenceGroup, reason: FailureReason, message: str, *, is_wrong: bool = False
    ) -> None:
        """End a sequence that cannot go on, once; `is_wrong` KV must not be found in the cache again."""
        self._registry.fail(group, reason, message, is_wrong=is_wrong)

    def end_choice(self, choice: Choice) -> None:
        """A running choice has its last token; the group ends with the last choice."""
        group = choice.group
        self._forecast.observe(choice)
        if choice.row >= 0:
            self._batch.leave(choice)
        self._tables.return_choice(choice)
        self._room.note_return()
        group.choices.remove(choice)
        if not group.choices:
            self._registry.end(group)

    def give_back(self, held: list[int]) -> None:
        """The step that blocks were held back for is over."""
        self._tables.give_back(held)
        if held:
            self._room.note_return()

    def check_integrity(self, *, is_whole: bool) -> None:
        """Assert that the groups' references and promises are all there are.

        A whole check costs O(pool). Another one, which costs O(groups), looks at all sums and at some blocks,
        others each time.
        """
        groups = self._registry.all()
        self._tables.check_integrity(groups, self._lending.tables, is_whole=is_whole)
        self._preempter.check_integrity(groups, is_whole=is_whole)
        self.queues.check_integrity()
        self._adapter_waits.check_integrity(self._registry)

    # In

    def _enter(
        self, spec: SequenceSpec, goal: Goal, now_s: float, *, receives: ReceiveKind | None = None
    ) -> None:
        assert spec.handle not in self._registry, f"handle {spec.handle} is in use"
        entered = self._admission.enter(spec, goal, receives, now_s)
        if isinstance(entered, Failure):
            self._registry.refuse(entered)
            return
        self._registry.add(entered)
        if spec.sampling.grammar and goal is not Goal.CACHE:
            self.queues.lacking_grammar[entered.key] = entered
        else:
            self._wait_for_adapter(entered)

    def _end_wait(self, ready: GrammarReady | AdapterLoaded) -> None:
        match ready:
            case GrammarReady():
                self._take_grammar(ready)
            case AdapterLoaded():
                self._take_adapter(ready)

    def _take_grammar(self, ready: GrammarReady) -> None:
        group = self._registry.undivided(ready.handle)
        if group is None or self.queues.lacking_grammar.pop(group.key, None) is None:
            return
        group.grammar = ready.grammar
        if ready.grammar is None:
            self._registry.fail(group, FailureReason.REFUSED, f"grammar cannot be followed: {ready.refusal}")
        else:
            self._wait_for_adapter(group)

    def _wait_for_adapter(self, group: SequenceGroup) -> None:
        self.report.adapter_loads += self._adapter_waits.enter(group)

    def _take_adapter(self, loaded: AdapterLoaded) -> None:
        if not loaded.refusal:
            self.report.adapter_loads += self._adapter_waits.end_load(loaded.digest)
            return
        for group in self._adapter_waits.fail_load(loaded.digest):
            self._registry.fail(group, FailureReason.REFUSED, f"adapter {loaded.refusal}")
        self.report.adapter_loads += self._adapter_waits.advance()

    def _admit_waiting(self, cost: CostModel) -> None:
        waiting = self.queues.waiting
        while (group := waiting.next(self.queues.has_rows)) is not None and self._take_memory(group):
            waiting.remove(group)
            if group.receives:
                self._arrivals.begin_receive(group)
            else:
                self._arrivals.begin_prefill(group, cost)

    def _refused_head(self) -> SequenceGroup | None:
        """Return the group that rows are there for and memory has no room for, if there is one."""
        head = next(iter(self.queues.preempted.values()), None)
        if head is None:
            return self.queues.waiting.next(self.queues.has_rows)
        return head if self.queues.has_rows(head) else None

    def _take_memory(self, group: SequenceGroup) -> bool:
        return self._room.take(group, self._registry.holders(), is_idle=not self._batch.num_rows)

    # Preempted

    def _preempt(self, group: SequenceGroup, means: Means) -> None:
        """Suspend a group until there is room for it again."""
        if group.phase is Phase.PREFILLING:
            self.queues.leave_prefill(group)
        self.queues.arrived.pop(group.key, None)
        if means is Means.SWAP:
            self._preempter.swap_out(group)
            pieces = [group]
        else:
            pieces = self._preempter.drop(group, self._keys)
            self._registry.break_up(group, pieces)
        if not self._is_preempted(group.handle):
            self._registry.report.preempted.append(group.handle)
        self._forecast.remove(group)
        self._room.note_return()
        self.queues.add_preempted(pieces)

    def _resume_preempted(self, cost: CostModel) -> bool:
        """Return True if no group is left that has to come back before others start."""
        for group in list(self.queues.preempted.values()):
            if not (self.queues.has_rows(group) and self._take_memory(group)):
                return False
            del self.queues.preempted[group.key]
            if group.phase is not Phase.RUNNING:
                self._arrivals.begin_prefill(group, cost)
            if not self._is_preempted(group.handle):
                self._registry.report.resumed.append(group.handle)
        return True

    def _is_preempted(self, handle: int) -> bool:
        """Return True if any piece of the handle is preempted."""
        return any(piece.key in self.queues.preempted for piece in self._registry.pieces(handle))
