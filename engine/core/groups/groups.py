"""The groups of a worker: how they run, give their blocks up and end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from engine.core.adapters import AdapterSlots
from engine.core.batch import Batch
from engine.core.due_times import after_first_token
from engine.core.groups.roster import Roster
from engine.core.memory.block_tables import BlockTables
from engine.core.memory.room import Room
from engine.core.memory.stores import BlockPool, SwapMemory
from engine.core.report import Failure, Prefilled, StepReport
from engine.core.sequence import Choice, Goal, Phase, SequenceGroup
from scheduling.cost_model import CostModel
from scheduling.memory.preemption import Means
from scheduling.request import FailureReason
from scheduling.step import PrefillWork

NewChoice = Callable[[SequenceGroup, int], Choice]
"""Makes one choice of a group, as it is before its first token here."""


class Groups:
    """Moves groups from phase to phase, along with what they have, and reports it.

    `Roster` keeps the phases, `Room` decides who gets blocks, `BlockTables` keeps which ones, `Batch` keeps
    the rows, and `AdapterSlots` the adapters. Each group ends here, whatever it waits for or has.
    """

    def __init__(
        self,
        tables: BlockTables,
        batch: Batch,
        blocks: BlockPool,
        swap: SwapMemory,
        adapters: AdapterSlots,
        new_choice: NewChoice,
    ) -> None:
        self._tables = tables
        self._batch = batch
        self._blocks = blocks
        self._adapters = adapters
        self._new_choice = new_choice
        self.room = Room(tables, batch, blocks, swap)
        self.roster = Roster(batch)
        self.report = StepReport()
        """Events since the last report; replaced for every report."""

    # What is reported

    def take_report(self) -> StepReport:
        """Return what happened since the last report."""
        report, self.report = self.report, StepReport()
        return report

    def publish_blocks(self, group: SequenceGroup) -> None:
        """Share the blocks filled since the last time and, if they are to be handed over, report them."""
        if group.goal is not Goal.HAND_OVER:
            self._tables.register_filled(group)
        elif (filled := self._tables.publish_filled(group)) is not None:
            self.report.filled.append(filled)

    def report_prefilled(self, group: SequenceGroup) -> None:
        """Report that a group's context is complete."""
        self.report.prefilled.append(Prefilled(group.handle, group.num_cached_tokens))

    def refuse(self, failure: Failure) -> None:
        """Report a handle that has no group."""
        self.report.failures.append(failure)
        self.report.freed.append(failure.handle)

    # Adapters

    def wait_for_adapter(self, group: SequenceGroup) -> None:
        """Let a group wait that lacks no grammar: for its adapter, or for blocks alone.

        Blocks that are only cached need no adapter.
        """
        digest = group.spec.adapter
        if not digest or group.goal is Goal.CACHE or self._adapters.take(group.handle, digest):
            self.roster.wait_for_blocks(group)
            return
        self.roster.wait_for_adapter(group)
        self._load_adapters()

    def end_adapter_load(self, digest: str) -> None:
        """Let the groups go on whose adapter is there now."""
        self._have_adapter(self._adapters.end_load(digest))
        self._load_adapters()

    def fail_adapter_load(self, digest: str, message: str) -> None:
        """End the groups whose adapter cannot be loaded."""
        for group in self._undivided(self._adapters.fail_load(digest)):
            self.fail(group, FailureReason.REFUSED, message)
        self._load_adapters()

    def _release_adapter(self, group: SequenceGroup) -> None:
        """Note that a group computes nothing more: its adapter may make room."""
        if group.spec.adapter:
            self._adapters.release(group.handle)
            self._load_adapters()

    def _load_adapters(self) -> None:
        """Begin the loads that there is room for."""
        changes = self._adapters.advance()
        self._have_adapter(changes.ready)
        self.report.adapter_loads += changes.loads

    def _have_adapter(self, handles: Iterable[int]) -> None:
        for group in self._undivided(handles):
            self.roster.wait_for_blocks(group)

    def _undivided(self, handles: Iterable[int]) -> Iterator[SequenceGroup]:
        """Yield the groups of handles that wait for an adapter; they have not run."""
        for handle in handles:
            group = self.roster.undivided(handle)
            assert group is not None, f"handle {handle} waits for an adapter and has no group"
            yield group

    # The step

    def prefill_work(self, now_s: float, *, chunks_follow: bool) -> Sequence[PrefillWork]:
        """Return what is to be computed, after taking what has become cached in the meantime.

        Unless `chunks_follow`, prompts with a chunk in flight are left out.
        """
        for group in self.roster.prefilling:
            if self._tables.extend_from_cache(group):
                self.publish_blocks(group)
        return self.roster.prefilling.work(now_s, chunks_follow=chunks_follow)

    def finish_prefill(self, group: SequenceGroup) -> bool:
        """Make the choices of a group whose context is complete, or will be when the step in flight is over.

        They take the rows promised to them. Return True if the group has not run before.
        """
        is_new = not group.is_resuming
        if is_new:
            group.choices = [self._new_choice(group, index) for index in group.spec.choices]
            if group.first_tokens is not None:
                due = after_first_token(group.spec.tpot_ms, group.spec.itl_ms, group.first_token_s)
                for choice in group.choices:
                    choice.due = due
        self.roster.put(group, Phase.RUNNING)
        return is_new

    def mark_chunk_written(self, group: SequenceGroup) -> None:
        """Take in that the group's chunk that was launched first is over: its KV is written."""
        group.pending_chunks.pop(0)
        # Choices that run have the blocks by now, and share them as they do their own.
        if group.phase is not Phase.ENDED and group.block_table:
            self.publish_blocks(group)

    def keep_for_handoff(self, group: SequenceGroup) -> None:
        """First tokens are out: keep the blocks for the handoff and nothing else."""
        group.choices = []
        self.roster.put(group, Phase.HELD)
        self._release_adapter(group)

    def start_choices(self, group: SequenceGroup) -> list[tuple[int, int]]:
        """First tokens are drawn: give each choice that goes on a block table; the others leave.

        Return the (source, target) copies to make before the next step.
        """
        going = [choice for choice in group.choices if not choice.is_finished]
        for choice in group.choices:
            if choice.is_finished:
                self.room.observe(choice)
                self._batch.leave(choice)
        group.choices = going
        if not going:
            self.end(group)
            return []
        copies = self._tables.start_choices(group)
        for choice in going:
            self._batch.table.set_blocks(choice)
        return copies

    def end_choice(self, choice: Choice) -> None:
        """A running choice has its last token; the group ends with the last choice."""
        group = choice.group
        self.room.observe(choice)
        if choice.row >= 0:
            self._batch.leave(choice)
        self.room.end_choice(choice)
        group.choices.remove(choice)
        if not group.choices:
            self.end(group)

    # Blocks of running choices

    @property
    def is_short_of_blocks(self) -> bool:
        """True if `grow_rows` has to preempt."""
        return self.room.num_short() > 0

    def grow_rows(self, cost: CostModel, now_s: float) -> None:
        """Give a block to each choice whose newest token begins one; where there are none, preempt."""
        while (num_short := self.room.num_short()) > 0:
            victims = self.roster.all()
            chosen = self.room.choose_victim(victims, num_short, cost, now_s)
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

    def _preempt(self, group: SequenceGroup, means: Means) -> None:
        """Suspend a group until there is room for it again."""
        if group.phase is Phase.RUNNING:
            for choice in group.choices:
                self._batch.leave(choice)
        pieces = self.room.suspend(group, means, self.roster.keys)
        if not self.roster.is_preempted(group.handle):
            self.report.preempted.append(group.handle)
        self.roster.suspend(group, pieces, Phase.SWAPPED if means is Means.SWAP else Phase.PREEMPTED)

    def rejoin(self, group: SequenceGroup) -> None:
        """Let the choices of a group run again whose blocks have come back from host memory."""
        self.roster.put(group, Phase.RUNNING)
        for choice in group.choices:
            self._batch.join(choice)
            self._batch.table.set_blocks(choice)

    # How they end

    def fail(
        self, group: SequenceGroup, reason: FailureReason, message: str, *, is_wrong: bool = False
    ) -> None:
        """End a sequence that cannot go on, once; `is_wrong` KV must not be found in the cache again."""
        pieces = self.roster.pieces(group.handle)
        if group.phase is Phase.ENDED or not pieces:
            return
        tables = [piece.block_table for piece in pieces]
        tables += [choice.block_table for piece in pieces for choice in piece.choices]
        self.report.failures.append(Failure(group.handle, reason, message))
        for piece in pieces:
            self.end(piece)
        if is_wrong:
            self._tables.forget(tables)

    def end(self, group: SequenceGroup) -> None:
        """Return everything the group has, from whatever phase; the handle is free with its last piece."""
        is_free = self.roster.remove(group)
        for choice in group.choices:
            if choice.row >= 0:
                self._batch.leave(choice)
        self.room.end(group)
        if is_free:
            self.report.freed.append(group.handle)
            self._release_adapter(group)

    def cancel(self, handle: int) -> None:
        """End the groups of a handle; one that a copy still writes to, once the copy is over."""
        for group in self.roster.pieces(handle):
            if group.phase in (Phase.RECEIVING, Phase.READING, Phase.ABANDONED):
                self.roster.put(group, Phase.ABANDONED)
            else:
                self.end(group)

    def release(self, handle: int) -> None:
        """End a group whose handoff is over."""
        group = self.roster.undivided(handle)
        if group is not None and group.goal is Goal.HAND_OVER:
            self.cancel(handle)  # its handoff may be given up while a read still writes to its blocks

    def hand_back(self) -> None:
        """End the groups of all handles that have not begun."""
        for handle in self.roster.handles():
            pieces = self.roster.pieces(handle)
            if not any(group.has_begun for group in pieces):
                self.fail(pieces[0], FailureReason.DRAINING, "this worker is draining")

    def check_integrity(self, loans: Iterable[Sequence[int]], *, is_whole: bool) -> None:
        """Assert that the references and promises of groups and loans are all there are.

        A whole check costs O(pool). Another one, which costs O(groups), looks at all sums and at some blocks,
        others each time.
        """
        groups = self.roster.all()
        self._tables.check_integrity(groups, loans, is_whole=is_whole)
        self.room.check_integrity(groups, is_whole=is_whole)
        self.roster.check_integrity()
        if self._adapters.num_slots:
            self._adapters.check_integrity(self.roster)
