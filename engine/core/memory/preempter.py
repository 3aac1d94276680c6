"""Takes the blocks of groups away for others, without loss to their output, and gives them back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import inf

from engine.core.batch import Batch
from engine.core.memory.block_pool import BlockPool
from engine.core.memory.block_tables import BlockTables
from engine.core.memory.swap_memory import SwapMemory
from engine.core.sequence import Choice, Goal, Phase, SequenceGroup
from scheduling.cost.cost_model import CostModel
from scheduling.memory.preemption import Preemption, SwapSpeed, VictimView, choose

_CAN_GIVE_UP = (Phase.ARRIVED, Phase.PREFILLING, Phase.RUNNING)


class Preempter:
    """Chooses victims, suspends them and brings swapped ones back; its caller has the queues and reports."""

    def __init__(self, tables: BlockTables, batch: Batch, blocks: BlockPool, swap: SwapMemory) -> None:
        self._tables = tables
        self._batch = batch
        self._blocks = blocks
        self._swap = swap

    def num_short(self) -> int:
        """Return how many blocks running choices need next beyond those promised and available."""
        num_available = self._blocks.num_available_blocks
        if num_available >= self._batch.num_rows:
            return 0
        return max(0, sum(self._needs().values()) - num_available)

    def choose(
        self, groups: Iterable[SequenceGroup], num_short: int, cost: CostModel, now_s: float
    ) -> Preemption:
        """The next victim among `groups`, named by its key."""
        needs = self._needs()
        views = [
            self._view(group, needs[group], now_s)
            for group in groups
            if group.phase in _CAN_GIVE_UP and group.goal is Goal.DECODE
        ]
        speed = SwapSpeed(self._swap.block_bytes, self._swap.bytes_per_s)
        chosen = choose(views, num_short, cost, speed)
        assert chosen is not None, "a choice that is short of a block needs it no longer once preempted"
        return chosen

    def swap_out(self, group: SequenceGroup) -> None:
        """Copy the group's blocks to host memory and drop them."""
        slots = self._swap.store(self._tables.unique_blocks(group))
        self._leave_batch(group)
        self._tables.swap_out(group, slots)
        group.phase = Phase.SWAPPED

    def swap_in(self, group: SequenceGroup) -> None:
        """The way back, into the batch; raises `BlockShortage` and changes nothing."""
        assert group.swapped is not None
        slots = group.swapped.slots
        copies = self._tables.swap_in(group)
        self._swap.load([slot for slot, _ in copies], [block for _, block in copies])
        self._swap.release(slots)
        group.phase = Phase.RUNNING
        for choice in group.choices:
            self._batch.join(choice)
            self._batch.table.set_blocks(choice)

    def forget(self, group: SequenceGroup) -> None:
        """Release the host memory of a group that ends."""
        if group.swapped is not None:
            self._swap.release(group.swapped.slots)
            group.swapped = None

    def drop(self, group: SequenceGroup, keys: Iterator[int]) -> list[SequenceGroup]:
        """Drop the group's blocks and return the groups to compute again in its stead.

        That is the group itself, or one for each of its running choices, with keys of their own.
        """
        if group.phase is not Phase.RUNNING:
            self._tables.lose_context(group)
            group.phase = Phase.PREEMPTED
            return [group]
        self._leave_batch(group)
        for choice in group.choices:
            self._tables.return_choice(choice)
        if len(group.choices) == 1:
            pieces = [group]
        else:
            pieces = [group.piece(next(keys), choice) for choice in group.choices]
        for piece in pieces:
            self._rewind(piece)
        return pieces

    def check_integrity(self, groups: Iterable[SequenceGroup], *, is_whole: bool) -> None:
        """Assert that host memory is what swapped groups hold; unless `is_whole`, by the number of slots."""
        slots = [group.swapped.slots for group in groups if group.swapped is not None]
        check = self._swap.check_integrity if is_whole else self._swap.check_some
        check(slots)

    def _rewind(self, piece: SequenceGroup) -> None:
        """Let the context include the output of the only choice."""
        (choice,) = piece.choices
        piece.extend_context(choice.num_outputs)
        piece.num_known_tokens = max(piece.num_known_tokens, piece.num_context_tokens - 1)
        piece.block_hashes = self._tables.names.of_full_blocks(piece.spec, choice.output_token_ids)
        piece.num_computed_tokens = piece.num_cached_tokens = piece.num_filled_blocks = 0
        piece.first_tokens = None
        piece.phase = Phase.PREEMPTED

    def _leave_batch(self, group: SequenceGroup) -> None:
        for choice in group.choices:
            self._batch.leave(choice)

    def _needs(self) -> Counter[SequenceGroup]:
        """Count the blocks that running groups need now and were not promised."""
        needs: Counter[SequenceGroup] = Counter()
        for choice in self._batch.rows_at_block_start():
            position = int(self._batch.positions[choice.row])
            is_short = not choice.num_reserved_blocks and self._tables.lacks_block(choice, position)
            needs[choice.group] += is_short
        return needs

    def _view(self, group: SequenceGroup, num_needed: int, now_s: float) -> VictimView:
        is_running = group.phase is Phase.RUNNING
        tables = [choice.block_table for choice in group.choices] if is_running else [group.block_table]
        num_promised = group.num_reserved_blocks + sum(c.num_reserved_blocks for c in group.choices)
        num_swap = len(tables[0]) if len(tables) == 1 else len({block for table in tables for block in table})
        return VictimView(
            key=group.key,
            num_tokens=_num_lost_tokens(group, is_running),
            num_freed_blocks=self._blocks.num_exclusive(tables) + num_promised + num_needed,
            num_swap_blocks=num_swap,
            arrival=group.arrival,
            slack_s=min((self._slack_s(choice, now_s) for choice in group.choices), default=inf),
            can_swap=is_running and num_swap <= self._swap.num_free,
        )

    def _slack_s(self, choice: Choice, now_s: float) -> float:
        due_s = choice.due.next_s if choice.row < 0 else float(self._batch.due_times.next_due[choice.row])
        return max(0.0, due_s - now_s)


def _num_lost_tokens(group: SequenceGroup, is_running: bool) -> int:
    if not is_running:
        return group.num_computed_tokens
    num_prompt = len(group.spec.prompt_token_ids)
    return sum(num_prompt + choice.num_outputs for choice in group.choices)
