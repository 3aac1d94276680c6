"""The groups a step loop has, by phase: what commands do to them between two steps, and who is next."""

from __future__ import annotations

from collections.abc import Sequence

from engine.admission import EngineLimits, refusal
from engine.batch import Batch
from engine.block_manager import BlockShortage
from engine.block_tables import BlockTables
from engine.commands import Cancel, Decode, KVArrived, KVFailed, Prefill, Receive, Release, SequenceCommand
from engine.detokenizer import Detokenizer
from engine.output import OutputStream, output_rules
from engine.report import Failure, Prefilled, Received
from engine.report_builder import ReportBuilder
from engine.sequence import Goal, Phase, SequenceGroup
from engine.sequence import Sequence as Choice
from scheduling.request import FailureReason, SequenceSpec
from scheduling.step import PrefillWork


class Groups:
    """Every group that has not ended."""

    def __init__(
        self, tables: BlockTables, batch: Batch, limits: EngineLimits, detokenizer: Detokenizer | None
    ) -> None:
        self._tables = tables
        self._batch = batch
        self._limits = limits
        self._detokenizer = detokenizer
        self._all: dict[int, SequenceGroup] = {}
        # Dicts as ordered sets: first in, first served, and a group can leave from anywhere.
        self._receiving: dict[int, SequenceGroup] = {}
        self._arrived: dict[int, SequenceGroup] = {}
        self._waiting: dict[int, SequenceGroup] = {}
        self._prefilling: dict[int, SequenceGroup] = {}
        self._num_promised_rows = 0
        self.report = ReportBuilder()
        """Where effects are told; replaced for every report."""

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return bool(self._batch.num_rows or self._prefilling or self._waiting or self._arrived)

    @property
    def num_waiting_choices(self) -> int:
        queues = (self._receiving, self._arrived, self._waiting, self._prefilling)
        return sum(group.num_rows for queue in queues for group in queue.values())

    @property
    def num_pending_tokens(self) -> int:
        queues = (self._arrived, self._waiting, self._prefilling)
        return sum(group.num_remaining_tokens for queue in queues for group in queue.values())

    def __getitem__(self, handle: int) -> SequenceGroup:
        return self._all[handle]

    def apply(self, command: SequenceCommand) -> None:
        """Carry out one command; what comes of it is in the report."""
        match command:
            case Prefill(spec):
                self._admit(spec, Goal.HOLD)
            case Decode(spec):
                self._admit(spec, Goal.DECODE)
            case Receive(spec):
                self._receive(spec)
            case KVArrived():
                self._arrive(command)
            case KVFailed(handle, message):
                self._give_up_copy(handle, message)
            case Release(handle):
                self._release(handle)
            case Cancel(handle):
                self._cancel(handle)

    def start_waiting(self) -> list[SequenceGroup]:
        """Let groups in while the batch has room for their rows; those whose KV is complete are answered."""
        complete: list[SequenceGroup] = []
        for queue in (self._arrived, self._waiting):
            for group in list(queue.values()):
                room = self._batch.max_rows - self._batch.num_rows - self._num_promised_rows
                if group.num_rows > room:
                    return complete  # who came first goes first
                del queue[group.handle]
                group.phase = Phase.PREFILLING
                self._prefilling[group.handle] = group
                self._num_promised_rows += group.num_rows
                if group.num_remaining_tokens == 0:
                    complete.append(group)
        return complete

    def prefill_work(self) -> list[PrefillWork]:
        """What is to be computed, after taking what has become cached in the meantime."""
        for group in self._prefilling.values():
            self._tables.extend_from_cache(group)
            self.publish_blocks(group)
        return [PrefillWork(handle, group.num_remaining_tokens) for handle, group in self._prefilling.items()]

    def finish_prefill(self, group: SequenceGroup) -> None:
        """The context is complete: say so and make the choices, to take the rows promised to them."""
        self._leave_prefill(group)
        self.report.prefilled.append(Prefilled(group.handle, group.num_cached_tokens))
        group.phase = Phase.RUNNING
        for index in group.spec.choices:
            stream = None if self._detokenizer is None else self._detokenizer.stream()
            choice = Choice(group, index, OutputStream(group.rules, stream))
            # Delivered output has had its effect on the text, as if it had been generated here.
            for token_id in group.spec.output_token_ids:
                choice.output.push(token_id)
            group.sequences.append(choice)

    def publish_blocks(self, group: SequenceGroup) -> None:
        """Share the blocks filled since the last time and, if they are to be handed over, report them."""
        filled = self._tables.register_filled(group)
        if filled is not None and group.goal is Goal.HOLD:
            self.report.filled.append(filled)

    def hold(self, group: SequenceGroup) -> None:
        """First tokens are out: keep the blocks for the handoff and nothing else."""
        for choice in group.sequences:
            self._batch.leave(choice)
        group.sequences = []
        group.phase = Phase.HELD

    def start_choices(self, group: SequenceGroup) -> list[tuple[int, int]]:
        """First tokens are out: a block table for each choice that goes on; the others leave.

        Answers the (source, target) copies to make before the next step.
        """
        going = [choice for choice in group.sequences if not choice.is_finished]
        for choice in group.sequences:
            if choice.is_finished:
                self._batch.leave(choice)
        group.sequences = going
        if not going:
            self._end(group)
            return []
        copies = self._tables.start_choices(group)
        for choice in going:
            self._batch.set_blocks(choice)
        return copies

    def grow_rows(self) -> None:
        """Give a block to each choice whose newest token begins one."""
        for choice in self._batch.rows_at_block_start():
            block = self._tables.grow(choice, int(self._batch.positions[choice.row]))
            if block is not None:
                self._batch.add_block(choice, block)

    def end_choice(self, choice: Choice) -> None:
        """A running choice has its last token; the group ends with the last choice."""
        group = choice.group
        self._batch.leave(choice)
        self._tables.return_choice(choice)
        group.sequences.remove(choice)
        if not group.sequences:
            self._end(group)

    def fail(
        self, group: SequenceGroup, reason: FailureReason, message: str, *, is_wrong: bool = False
    ) -> None:
        """End a group that cannot go on; `is_wrong` KV must not be found in the cache again."""
        tables = [group.block_table, *(choice.block_table for choice in group.sequences)]
        self.report.failures.append(Failure(group.handle, reason, message))
        self._end(group)
        if is_wrong:
            self._tables.forget(tables)

    def check_integrity(self) -> None:
        """Assert that the groups' references and promises are all there are."""
        self._tables.check_integrity(self._all.values())
        assert self._num_promised_rows == sum(group.num_rows for group in self._prefilling.values())

    def _admit(self, spec: SequenceSpec, goal: Goal) -> None:
        group = self._new_group(spec, goal)
        if group is not None and self._reserve(group, self._tables.computable_prefix(group)):
            self._waiting[group.handle] = group
            self.publish_blocks(group)

    def _receive(self, spec: SequenceSpec) -> None:
        group = self._new_group(spec, Goal.DECODE)
        if group is None or not self._reserve(group, group.block_hashes):
            return
        group.phase = Phase.RECEIVING
        self._receiving[group.handle] = group
        num_held = len(group.block_table)
        self._tables.cover(group, len(group.context))
        hashes = tuple(self._tables.hash_all_blocks(group))
        self.report.received.append(Received(group.handle, tuple(group.block_table), hashes, num_held))

    def _new_group(self, spec: SequenceSpec, goal: Goal) -> SequenceGroup | None:
        assert spec.handle not in self._all, f"handle {spec.handle} is in use"
        sentence = refusal(spec, self._limits, has_text=self._detokenizer is not None)
        if sentence is not None:
            self.report.failures.append(Failure(spec.handle, FailureReason.REFUSED, sentence))
            self.report.freed.append(spec.handle)
            return None
        num_prompt = len(spec.prompt_token_ids)
        rules = output_rules(spec.stop, self._limits.eos_token_ids, num_prompt, self._limits.max_context)
        return SequenceGroup(spec, goal, rules, self._tables.hash_full_blocks(spec))

    def _reserve(self, group: SequenceGroup, prefix: Sequence[bytes]) -> bool:
        """Pin the cached prefix and promise the rest, or report why not."""
        try:
            self._tables.reserve(group, prefix)
        except BlockShortage as shortage:
            self.report.failures.append(Failure(group.handle, FailureReason.NO_BLOCKS, str(shortage)))
            self.report.freed.append(group.handle)
            return False
        self._all[group.handle] = group
        return True

    def _arrive(self, arrived: KVArrived) -> None:
        group = self._all.get(arrived.handle)
        if group is None:
            return
        if group.phase is Phase.ABANDONED:
            self._end(group)
            return
        assert group.phase is Phase.RECEIVING, f"KV arrived for a sequence that is {group.phase.value}"
        del self._receiving[group.handle]
        self._tables.accept(group, arrived.num_verified_blocks)
        group.first_tokens = arrived.first_tokens
        group.phase = Phase.WAITING
        self._arrived[group.handle] = group

    def _give_up_copy(self, handle: int, message: str) -> None:
        group = self._all.get(handle)
        if group is None:
            return
        if group.phase is Phase.ABANDONED:
            self._end(group)
        else:
            assert group.phase is Phase.RECEIVING, f"KV failed for a sequence that is {group.phase.value}"
            self.fail(group, FailureReason.HANDOFF, message)

    def _release(self, handle: int) -> None:
        group = self._all.get(handle)
        if group is not None and group.goal is Goal.HOLD:
            self._end(group)

    def _cancel(self, handle: int) -> None:
        group = self._all.get(handle)
        if group is None:
            return
        if group.phase in (Phase.RECEIVING, Phase.ABANDONED):
            group.phase = Phase.ABANDONED
            self._receiving.pop(handle, None)
        else:
            self._end(group)

    def _end(self, group: SequenceGroup) -> None:
        """Return everything the group has, from whatever phase."""
        handle = group.handle
        if group.phase is Phase.PREFILLING:
            self._leave_prefill(group)
        for queue in (self._receiving, self._arrived, self._waiting):
            queue.pop(handle, None)
        for choice in group.sequences:
            if choice.row >= 0:
                self._batch.leave(choice)
            self._tables.return_choice(choice)
        self._tables.return_context(group)
        del self._all[handle]
        self.report.freed.append(handle)

    def _leave_prefill(self, group: SequenceGroup) -> None:
        del self._prefilling[group.handle]
        self._num_promised_rows -= group.num_rows
