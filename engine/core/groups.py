"""The groups that a worker has, by phase: what commands do to them between two steps, and which are next."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

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
from engine.core.memory.block_pool import BlockPool
from engine.core.memory.block_tables import BlockTables
from engine.core.memory.disk_reads import DiskReads, KVDisk
from engine.core.memory.forecast import WITHOUT_BLOCKS, MemoryForecast
from engine.core.memory.moving import make_parts
from engine.core.memory.preempter import Preempter
from engine.core.memory.room import Room
from engine.core.memory.swap_memory import SwapMemory
from engine.core.queues import Queues
from engine.core.report import Failure, Prefilled, StepReport
from engine.core.sequence import Choice, Goal, Phase, SequenceGroup
from scheduling.cost.cost_model import CostModel
from scheduling.memory.preemption import Means
from scheduling.request import FailureReason, ReceiveKind, SequenceSpec
from scheduling.step import PrefillWork

NewChoice = Callable[[SequenceGroup, int], Choice]
"""Makes one choice of a group, as it is before its first token here."""


class Groups:
    """Every group that has not ended."""

    def __init__(
        self,
        tables: BlockTables,
        batch: Batch,
        blocks: BlockPool,
        swap: SwapMemory,
        limits: EngineLimits,
        refuse: Refuse,
        new_choice: NewChoice,
        disk: KVDisk | None,
        adapters: AdapterSlots,
    ) -> None:
        self._tables = tables
        self._batch = batch
        self._blocks = blocks
        self._new_choice = new_choice
        self._adapters = adapters
        self._disk_reads = None if disk is None else DiskReads(disk, tables)
        self._keys = itertools.count(1)
        self._admission = Admission(tables, blocks.num_blocks, limits, self._keys, refuse)
        self._forecast = MemoryForecast(blocks)
        self._preempter = Preempter(tables, batch, blocks, swap)
        self._room = Room(tables, self._forecast, self._preempter)
        self._pieces: dict[int, list[SequenceGroup]] = {}
        """By handle. All choices of a handle are one group, unless a preemption broke it into pieces."""
        self.queues = Queues(batch)
        self.report = StepReport()
        """Events since the last report; replaced for every report."""

    def __getitem__(self, key: int) -> SequenceGroup:
        """Return a group that is being prefilled."""
        return self.queues.prefilling[key]

    def apply(self, command: SequenceCommand, now_s: float, cost: CostModel) -> None:
        """Carry out one command; its effects are in the report."""
        match command:
            case Prefill(spec):
                self._enter(spec, Goal.HAND_OVER, now_s)
            case Decode(spec):
                self._enter(spec, Goal.DECODE, now_s)
            case Receive(spec, kind):
                goal = Goal.CACHE if kind is ReceiveKind.AHEAD else Goal.DECODE
                self._enter(spec, goal, now_s, receives=kind)
            case GrammarReady():
                self._take_grammar(command)
            case AdapterLoaded(digest, refusal):
                self._take_adapter(digest, refusal)
            case KVArrived() | KVFailed() | BlocksRead():
                self._end_copy(command, now_s, cost)
            case Release(handle):
                self._release(handle)
            case Cancel(handle):
                self._cancel(handle)
            case HandBack():
                self._hand_back()
            case PreCopy(handle, choice, num_blocks, part):
                self._offer(handle, {choice: part}, now_s, num_blocks)
            case StopAndCopy():
                self._stop_and_copy(command, now_s)

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

    def prefill_work(self, now_s: float, *, is_pipeline: bool) -> Sequence[PrefillWork]:
        """Return what is to be computed, after taking what has become cached in the meantime.

        In a pipeline a prompt is in one step at a time; elsewhere its next chunk may follow the last.
        """
        for group in self.queues.prefilling.values():
            if self._tables.extend_from_cache(group):
                self.publish_blocks(group)
        return self.queues.prefill_work(now_s, is_pipeline=is_pipeline)

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

    def publish_blocks(self, group: SequenceGroup) -> None:
        """Share the blocks filled since the last time and, if they are to be handed over, report them."""
        if group.goal is not Goal.HAND_OVER:
            self._tables.register_filled(group)
        elif (filled := self._tables.publish_filled(group)) is not None:
            self.report.filled.append(filled)

    def report_prefilled(self, group: SequenceGroup) -> None:
        self.report.prefilled.append(Prefilled(group.handle, group.num_cached_tokens))

    def mark_chunk_written(self, group: SequenceGroup) -> None:
        """Take in that the group's chunk that was launched first is over: its KV is written."""
        group.pending_chunks.pop(0)
        # Choices that run have the blocks by now, and share them as they do their own.
        if group.phase is not Phase.ENDED and group.block_table:
            self.publish_blocks(group)

    def keep_for_handoff(self, group: SequenceGroup) -> None:
        """First tokens are out: keep the blocks for the handoff and nothing else."""
        group.choices = []
        group.phase = Phase.HELD
        self._leave_adapter(group)

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
            self._end(group)
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
            victims = self._all()
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
            self._end(group)

    def fail(
        self, group: SequenceGroup, reason: FailureReason, message: str, *, is_wrong: bool = False
    ) -> None:
        """End a sequence that cannot go on, once; `is_wrong` KV must not be found in the cache again."""
        pieces = list(self._pieces.get(group.handle, ()))
        if group.phase is Phase.ENDED or not pieces:
            return
        tables = [piece.block_table for piece in pieces]
        tables += [choice.block_table for piece in pieces for choice in piece.choices]
        self.report.failures.append(Failure(group.handle, reason, message))
        for piece in pieces:
            self._end(piece)
        if is_wrong:
            self._tables.forget(tables)

    def give_back(self, held: list[int]) -> None:
        """The step that blocks were held back for is over."""
        if held:
            self._tables.give_back(held)
            self._room.note_return()

    def check_integrity(self, *, is_whole: bool) -> None:
        """Assert that the groups' references and promises are all there are.

        A whole check costs O(pool). Another one, which costs O(groups), looks at all sums and at some blocks,
        others each time.
        """
        groups = self._all()
        self._tables.check_integrity(groups, is_whole=is_whole)
        self._preempter.check_integrity(groups, is_whole=is_whole)
        self.queues.check_integrity()
        self._adapters.check_integrity(self._pieces)

    def _all(self) -> list[SequenceGroup]:
        return [group for pieces in self._pieces.values() for group in pieces]

    # In

    def _enter(
        self, spec: SequenceSpec, goal: Goal, now_s: float, *, receives: ReceiveKind | None = None
    ) -> None:
        assert spec.handle not in self._pieces, f"handle {spec.handle} is in use"
        entered = self._admission.enter(spec, goal, receives, now_s)
        if isinstance(entered, Failure):
            self._refuse(entered)
            return
        self._pieces[spec.handle] = [entered]
        if spec.sampling.grammar and goal is not Goal.CACHE:
            self.queues.lacking_grammar[entered.key] = entered
        else:
            self._wait_for_adapter(entered)

    def _take_grammar(self, ready: GrammarReady) -> None:
        group = self._undivided(ready.handle)
        if group is None or self.queues.lacking_grammar.pop(group.key, None) is None:
            return
        group.grammar = ready.grammar
        if ready.grammar is None:
            self.fail(group, FailureReason.REFUSED, f"grammar cannot be followed: {ready.refusal}")
        else:
            self._wait_for_adapter(group)

    def _wait_for_adapter(self, group: SequenceGroup) -> None:
        """Queue a group that lacks nothing but its adapter, if that; blocks that are only kept need none."""
        digest = group.spec.adapter
        if not digest or group.goal is Goal.CACHE or self._adapters.take(group.handle, digest):
            self.queues.waiting.add(group)
        else:
            self.queues.lacking_adapter[group.key] = group
            self._advance_adapters()

    def _take_adapter(self, digest: str, refusal: str) -> None:
        if refusal:
            for handle in self._adapters.fail_load(digest):
                self.fail(self._pieces[handle][0], FailureReason.REFUSED, f"adapter {refusal}")
        else:
            self._queue_adapted(self._adapters.end_load(digest))
        self._advance_adapters()

    def _leave_adapter(self, group: SequenceGroup) -> None:
        """A group computes nothing more: its adapter may make room."""
        if group.spec.adapter:
            self._adapters.release(group.handle)
            self._advance_adapters()

    def _advance_adapters(self) -> None:
        changes = self._adapters.advance()
        self.report.adapter_loads += changes.loads
        self._queue_adapted(changes.ready)

    def _queue_adapted(self, handles: Iterable[int]) -> None:
        """Queue the groups of handles whose adapter is there now."""
        for handle in handles:
            (group,) = self._pieces[handle]
            del self.queues.lacking_adapter[group.key]
            self.queues.waiting.add(group)

    def _refuse(self, failure: Failure) -> None:
        self.report.failures.append(failure)
        self.report.freed.append(failure.handle)

    def _admit_waiting(self, cost: CostModel) -> None:
        waiting = self.queues.waiting
        while (group := waiting.next(self.queues.has_rows)) is not None and self._take_memory(group):
            waiting.remove(group)
            if group.receives:
                self._begin_receive(group)
            else:
                self._begin_prefill(group, cost)

    def _refused_head(self) -> SequenceGroup | None:
        """Return the group that rows are there for and memory has no room for, if there is one."""
        head = next(iter(self.queues.preempted.values()), None)
        if head is None:
            return self.queues.waiting.next(self.queues.has_rows)
        return head if self.queues.has_rows(head) else None

    def _take_memory(self, group: SequenceGroup) -> bool:
        return self._room.take(group, self._holders(), is_idle=not self._batch.num_rows)

    def _holders(self) -> Iterator[SequenceGroup]:
        for pieces in self._pieces.values():
            for group in pieces:
                if group.phase not in WITHOUT_BLOCKS:
                    yield group

    # From elsewhere

    def _end_copy(self, command: KVArrived | KVFailed | BlocksRead, now_s: float, cost: CostModel) -> None:
        match command:
            case KVArrived():
                self._arrive(command, now_s)
            case KVFailed(handle, message):
                self._give_up_copy(handle, message)
            case BlocksRead():
                self._take_read(command, cost)

    def _begin_receive(self, group: SequenceGroup) -> None:
        group.phase = Phase.RECEIVING
        self.queues.receiving[group.key] = group
        self.report.received.append(self._tables.expect(group))

    def _arrive(self, arrived: KVArrived, now_s: float) -> None:
        group = self._receiver(arrived.handle, Phase.RECEIVING)
        if group is None:
            return
        del self.queues.receiving[group.key]
        self._tables.accept(group, arrived.num_verified_blocks)
        if group.goal is Goal.CACHE:
            self.report_prefilled(group)
            self._end(group)
            return
        group.receives = False
        if not group.lacks_newest:
            group.first_tokens = arrived.first_tokens
            group.first_token_s = now_s - arrived.first_token_age_s
        group.phase = Phase.ARRIVED
        self.queues.arrived[group.key] = group

    def _give_up_copy(self, handle: int, message: str) -> None:
        group = self._receiver(handle, Phase.RECEIVING)
        if group is not None:
            self.fail(group, FailureReason.HANDOFF, message)

    def _begin_prefill(self, group: SequenceGroup, cost: CostModel) -> None:
        """Let a group that has memory wait for a disk, if that pays, and else compute."""
        if not self._waits_for_disk(group, cost):
            self.queues.begin_prefill(group)
            self.publish_blocks(group)

    def _waits_for_disk(self, group: SequenceGroup, cost: CostModel) -> bool:
        """Return True if the group waits for blocks on a disk from now on."""
        # Reads are named by handles, so the pieces of a handle do not read.
        if self._disk_reads is None or len(self._pieces[group.handle]) > 1:
            return False
        wanted = self._disk_reads.wanted(group, cost)
        if wanted is None:
            return False
        if self._disk_reads.follow(group, wanted):
            group.phase = Phase.FOLLOWING
        else:
            group.phase = Phase.READING
            self.report.reads.append(self._disk_reads.begin(group, wanted))
        self.queues.reading[group.key] = group
        return True

    def _take_read(self, read: BlocksRead, cost: CostModel) -> None:
        if self._undivided(read.handle) is None:
            return
        assert self._disk_reads is not None, "only then a read begins"
        followers = self._disk_reads.end(read.handle)
        group = self._receiver(read.handle, Phase.READING)
        if group is not None:
            self._tables.accept_read(group, read.num_blocks)
            self._leave_disk(group)
        for follower in followers:
            if follower.phase is Phase.FOLLOWING:
                self._tables.extend_from_cache(follower)
                if not self._waits_for_disk(follower, cost):
                    self._leave_disk(follower)

    def _leave_disk(self, group: SequenceGroup) -> None:
        """Let a group go on that waits for a disk no more."""
        del self.queues.reading[group.key]
        self.publish_blocks(group)
        group.phase = Phase.ARRIVED
        self.queues.arrived[group.key] = group

    def _receiver(self, handle: int, phase: Phase) -> SequenceGroup | None:
        """Return the group whose copy is over; end it and return None if nobody waits for it any more."""
        group = self._undivided(handle)
        if group is None:
            return None
        if group.phase is Phase.ABANDONED:
            self._end(group)
            return None
        assert group.phase is phase, f"a copy is over for a sequence that is {group.phase.value}"
        return group

    def _undivided(self, handle: int) -> SequenceGroup | None:
        """Return the one group of a handle that has not run yet."""
        pieces = self._pieces.get(handle)
        return None if pieces is None else pieces[0]

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
            siblings = self._pieces[group.handle]
            siblings.remove(group)
            siblings.extend(pieces)
        if not self._is_preempted(group.handle):
            self.report.preempted.append(group.handle)
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
                self._begin_prefill(group, cost)
            if not self._is_preempted(group.handle):
                self.report.resumed.append(group.handle)
        return True

    def _is_preempted(self, handle: int) -> bool:
        """Return True if any piece of the handle is preempted."""
        return any(piece.key in self.queues.preempted for piece in self._pieces[handle])

    # To another worker

    def _offer(self, handle: int, parts: dict[int, int], now_s: float, num_blocks: int | None = None) -> None:
        """Hold blocks of a handle's running choices, each under its handle in `parts`, until `Release`."""
        pieces = self._pieces.get(handle, ())
        made = make_parts(self._tables, self._keys, pieces, parts, now_s, num_blocks)
        for group in made:
            self._pieces[group.handle] = [group]
            self.publish_blocks(group)
        handles = {group.handle for group in made}
        for part in (part for part in parts.values() if part not in handles):
            self._refuse(Failure(part, FailureReason.DRAINING, "its blocks are not there to offer"))

    def _stop_and_copy(self, stop: StopAndCopy, now_s: float) -> None:
        self._offer(stop.handle, dict(stop.parts), now_s)
        self.report.parked.append(stop.handle)
        self._cancel(stop.handle)

    # Out

    def _release(self, handle: int) -> None:
        group = self._undivided(handle)
        if group is not None and group.goal is Goal.HAND_OVER:
            self._cancel(handle)  # its handoff may be given up while a read still writes to its blocks

    def _cancel(self, handle: int) -> None:
        for group in list(self._pieces.get(handle, ())):
            if group.phase in (Phase.RECEIVING, Phase.READING, Phase.ABANDONED):
                group.phase = Phase.ABANDONED
                self.queues.receiving.pop(group.key, None)
                self.queues.reading.pop(group.key, None)
            else:
                self._end(group)

    def _end(self, group: SequenceGroup) -> None:
        """Return everything the group has, from whatever phase; the handle is free with its last piece."""
        self.queues.remove(group)
        for choice in group.choices:
            if choice.row >= 0:
                self._batch.leave(choice)
            self._tables.return_choice(choice)
        self._tables.return_context(group)
        self._preempter.forget(group)
        self._forecast.remove(group)
        self._room.note_return()
        group.phase = Phase.ENDED
        pieces = self._pieces[group.handle]
        pieces.remove(group)
        if not pieces:
            del self._pieces[group.handle]
            self.report.freed.append(group.handle)
            self._leave_adapter(group)

    def _hand_back(self) -> None:
        for pieces in list(self._pieces.values()):
            if not any(group.has_begun for group in pieces):
                self.fail(pieces[0], FailureReason.DRAINING, "this worker is draining")
