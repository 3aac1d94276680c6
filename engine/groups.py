"""The groups a step loop has, and their blocks: what commands do to them between two steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.admission import EngineLimits, refusal
from engine.batch import Batch
from engine.block_manager import BlockManager, BlockShortage
from engine.commands import Cancel, Command, Decode, KVArrived, KVFailed, Prefill, Receive, Release
from engine.detokenizer import Detokenizer
from engine.output import OutputStream, output_rules
from engine.report import Failure, Filled, Prefilled, Received
from engine.report_builder import ReportBuilder
from engine.sequence import Goal, Phase, SequenceGroup
from engine.sequence import Sequence as Choice
from scheduling.block_hash import chain_root, hash_block, hash_blocks
from scheduling.packing import PrefillWork
from scheduling.request import FailureReason, SequenceSpec
from scheduling.reservation import blocks_needed


class Groups:
    """Every group that has not ended, by phase; owner of their references to blocks."""

    def __init__(
        self,
        blocks: BlockManager,
        batch: Batch,
        limits: EngineLimits,
        fingerprint: str,
        detokenizer: Detokenizer | None,
    ) -> None:
        self._blocks = blocks
        self._batch = batch
        self._limits = limits
        self._fingerprint = fingerprint
        self._detokenizer = detokenizer
        self._all: dict[int, SequenceGroup] = {}
        # Dicts as ordered sets: first in, first served, and a group can leave from anywhere.
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
        idle = (Phase.RUNNING, Phase.HELD, Phase.ABANDONED)
        return sum(group.num_rows for group in self._all.values() if group.phase not in idle)

    @property
    def num_pending_tokens(self) -> int:
        queues = (self._arrived, self._waiting, self._prefilling)
        return sum(group.num_remaining_tokens for queue in queues for group in queue.values())

    def __getitem__(self, handle: int) -> SequenceGroup:
        return self._all[handle]

    def apply(self, command: Command) -> None:
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
            self._extend_from_cache(group)
        return [PrefillWork(handle, group.num_remaining_tokens) for handle, group in self._prefilling.items()]

    def cover(self, group: SequenceGroup, num_tokens: int) -> None:
        """Allocate blocks for the first `num_tokens` tokens."""
        while len(group.block_table) * self._blocks.block_size < num_tokens:
            group.block_table.append(self._blocks.allocate())
            group.num_reserved_blocks -= 1

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
        """Register the blocks filled since the last time and, if they are to be handed over, report them."""
        size = self._blocks.block_size
        first, num_full = group.num_filled_blocks, group.num_computed_tokens // size
        for block, block_hash in zip(
            group.block_table[first:num_full], group.block_hashes[first:num_full], strict=True
        ):
            self._blocks.register(block, block_hash)
        group.num_filled_blocks = num_full
        is_complete = group.num_remaining_tokens == 0
        if group.goal is Goal.HOLD and (num_full > first or is_complete):
            end = len(group.block_table) if is_complete else num_full
            hashes = self._all_hashes(group) if is_complete else group.block_hashes
            self.report.filled.append(
                Filled(
                    handle=group.handle,
                    first_index=first,
                    blocks=tuple(group.block_table[first:end]),
                    hashes=tuple(hashes[first:end]),
                    complete=is_complete,
                )
            )

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
        copies = [copy for choice in going if (copy := self._start_choice(choice)) is not None]
        self._blocks.free(group.block_table)
        self._blocks.unreserve(group.num_reserved_blocks)
        group.block_table, group.num_reserved_blocks = [], 0
        return copies

    def _start_choice(self, choice: Choice) -> tuple[int, int] | None:
        """Share the group's blocks; the first choice takes the partial last one, the others copy it."""
        group = choice.group
        num_context = len(group.context)
        choice.num_registered_blocks = len(group.block_hashes)
        choice.last_hash = group.block_hashes[-1] if group.block_hashes else self._root(group.spec)
        if choice is group.sequences[0]:
            choice.block_table, copy = self._blocks.share(group.block_table), None
        else:
            fork = self._blocks.fork(group.block_table, num_context)
            choice.block_table, copy = fork.block_table, fork.copy
            group.num_reserved_blocks -= copy is not None
        choice.num_reserved_blocks = self._most_blocks_per_choice(group) - len(choice.block_table)
        group.num_reserved_blocks -= choice.num_reserved_blocks
        assert group.num_reserved_blocks >= 0
        self._batch.set_blocks(choice)
        return copy

    def grow(self, choice: Choice) -> None:
        """The newest token begins a block: register the one before, and allocate unless there is one."""
        size = self._blocks.block_size
        position = int(self._batch.positions[choice.row])
        if choice.num_registered_blocks * size < position:
            self._register_next(choice)
        if len(choice.block_table) * size <= position:
            block = self._blocks.allocate()
            choice.num_reserved_blocks -= 1
            self._batch.add_block(choice, block)

    def end_choice(self, choice: Choice) -> None:
        """A running choice has its last token; the group ends with the last choice."""
        group = choice.group
        self._batch.leave(choice)
        self._return_choice(choice)
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
            for table in tables:
                self._blocks.forget(table)

    def check_integrity(self) -> None:
        """Assert that the groups' references and promises are all there are."""
        tables = [group.block_table for group in self._all.values()]
        tables += [choice.block_table for choice in self._choices()]
        num_reserved = sum(group.num_reserved_blocks for group in self._all.values())
        num_reserved += sum(choice.num_reserved_blocks for choice in self._choices())
        self._blocks.check_integrity(tables, num_reserved)
        assert self._num_promised_rows == sum(group.num_rows for group in self._prefilling.values())

    def _choices(self) -> Iterator[Choice]:
        return (choice for group in self._all.values() for choice in group.sequences)

    def _admit(self, spec: SequenceSpec, goal: Goal) -> SequenceGroup | None:
        group = self._new_group(spec, goal)
        if group is None:
            return None
        # The logits of the context's last token are needed, so its block is computed even if it is cached.
        usable = (len(group.context) - 1) // self._blocks.block_size
        if not self._reserve(group, group.block_hashes[:usable]):
            return None
        self._waiting[group.handle] = group
        if group.block_table:
            self.publish_blocks(group)
        return group

    def _receive(self, spec: SequenceSpec) -> None:
        group = self._new_group(spec, Goal.DECODE)
        if group is None or not self._reserve(group, group.block_hashes):
            return
        group.phase = Phase.RECEIVING
        num_held = len(group.block_table)
        self.cover(group, len(group.context))
        self.report.received.append(
            Received(group.handle, tuple(group.block_table), tuple(self._all_hashes(group)), num_held)
        )

    def _new_group(self, spec: SequenceSpec, goal: Goal) -> SequenceGroup | None:
        assert spec.handle not in self._all, f"handle {spec.handle} is in use"
        sentence = refusal(spec, self._limits, has_text=self._detokenizer is not None)
        if sentence is not None:
            self.report.failures.append(Failure(spec.handle, FailureReason.REFUSED, sentence))
            self.report.freed.append(spec.handle)
            return None
        num_prompt = len(spec.prompt_token_ids)
        rules = output_rules(spec.stop, self._limits.eos_token_ids, num_prompt, self._limits.max_context)
        context = spec.prompt_token_ids + spec.output_token_ids
        hashes = hash_blocks(self._root(spec), context, self._blocks.block_size)
        return SequenceGroup(spec, goal, rules, hashes)

    def _reserve(self, group: SequenceGroup, prefix: Sequence[bytes]) -> bool:
        """Pin the cached prefix and promise the rest, or report why not."""
        num_blocks = self._most_blocks(group)
        try:
            group.block_table = self._blocks.reserve(num_blocks, prefix)
        except BlockShortage as shortage:
            self.report.failures.append(Failure(group.handle, FailureReason.NO_BLOCKS, str(shortage)))
            self.report.freed.append(group.handle)
            return False
        group.num_reserved_blocks = num_blocks - len(group.block_table)
        group.num_computed_tokens = len(group.block_table) * self._blocks.block_size
        group.num_cached_tokens = group.num_computed_tokens
        self._all[group.handle] = group
        return True

    def _most_blocks(self, group: SequenceGroup) -> int:
        size = self._blocks.block_size
        if group.goal is Goal.HOLD:
            return blocks_needed(len(group.context), 1, 1, size)
        num_prompt = len(group.spec.prompt_token_ids)
        return blocks_needed(num_prompt, group.rules.limit, group.num_rows, size)

    def _most_blocks_per_choice(self, group: SequenceGroup) -> int:
        num_prompt = len(group.spec.prompt_token_ids)
        return blocks_needed(num_prompt, group.rules.limit, 1, self._blocks.block_size)

    def _arrive(self, arrived: KVArrived) -> None:
        group = self._all.get(arrived.handle)
        if group is None:
            return
        if group.phase is Phase.ABANDONED:
            self._end(group)
            return
        assert group.phase is Phase.RECEIVING, f"KV arrived for a sequence that is {group.phase.value}"
        num_verified = arrived.num_verified_blocks * self._blocks.block_size
        group.num_computed_tokens = min(max(group.num_cached_tokens, num_verified), len(group.context))
        group.first_tokens = arrived.first_tokens
        self.publish_blocks(group)
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
        else:
            self._end(group)

    def _end(self, group: SequenceGroup) -> None:
        """Return everything the group has, from whatever phase."""
        handle = group.handle
        if group.phase is Phase.PREFILLING:
            self._leave_prefill(group)
        self._waiting.pop(handle, None)
        self._arrived.pop(handle, None)
        for choice in group.sequences:
            if choice.row >= 0:
                self._batch.leave(choice)
            self._return_choice(choice)
        self._blocks.free(group.block_table)
        self._blocks.unreserve(group.num_reserved_blocks)
        del self._all[handle]
        self.report.freed.append(handle)

    def _leave_prefill(self, group: SequenceGroup) -> None:
        del self._prefilling[group.handle]
        self._num_promised_rows -= group.num_rows

    def _return_choice(self, choice: Choice) -> None:
        size = self._blocks.block_size
        # The newest token's KV is not written; a block it would fill is not full.
        num_written = len(choice.group.spec.prompt_token_ids) + len(choice.output_token_ids) - 1
        while (choice.num_registered_blocks + 1) * size <= num_written and choice.block_table:
            self._register_next(choice)
        self._blocks.free(choice.block_table)
        self._blocks.unreserve(choice.num_reserved_blocks)
        choice.block_table = []
        choice.num_reserved_blocks = 0

    def _register_next(self, choice: Choice) -> None:
        choice.last_hash = choice.hash_next_block(self._blocks.block_size)
        self._blocks.register(choice.block_table[choice.num_registered_blocks], choice.last_hash)
        choice.num_registered_blocks += 1

    def _extend_from_cache(self, group: SequenceGroup) -> None:
        size = self._blocks.block_size
        usable = (len(group.context) - 1) // size
        num_held = len(group.block_table)
        while num_held < usable and group.num_computed_tokens == num_held * size:
            block = self._blocks.exchange(group.block_hashes[num_held])
            if block is None:
                break
            group.block_table.append(block)
            group.num_reserved_blocks -= 1
            num_held += 1
            group.num_computed_tokens += size
            group.num_cached_tokens += size
        if group.num_computed_tokens // size > group.num_filled_blocks:
            self.publish_blocks(group)

    def _all_hashes(self, group: SequenceGroup) -> list[bytes]:
        """Of every block of the context, the partial last one included."""
        full = list(group.block_hashes)
        rest = group.context[len(full) * self._blocks.block_size :]
        if rest.size:
            full.append(hash_block(full[-1] if full else self._root(group.spec), rest.tolist()))
        return full

    def _root(self, spec: SequenceSpec) -> bytes:
        return chain_root(self._fingerprint, spec.cache_salt)
