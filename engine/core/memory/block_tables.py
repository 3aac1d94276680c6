"""The blocks of groups and choices: what they hold, what they were promised, and what they share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.core.memory.block_manager import BlockManager
from engine.core.report import Filled, Received
from engine.core.sequence import Goal, SequenceGroup, Swapped
from engine.core.sequence import Sequence as Choice
from scheduling.memory.block_hash import chain_root, hash_block, hash_blocks
from scheduling.memory.reservation import blocks_needed
from scheduling.request import SequenceSpec


class BlockTables:
    """Keeps the block tables of groups and choices in step with the block manager.

    A group's table covers its context. Once it runs, each choice has a table of its own and the group none.
    What a group is promised before it starts is its context, or with `reserves_maximum` all that its choices
    can grow to; otherwise they ask for each block of their output when they need it.
    """

    def __init__(self, blocks: BlockManager, fingerprint: str, *, reserves_maximum: bool) -> None:
        self._blocks = blocks
        self._size = blocks.block_size
        self._fingerprint = fingerprint
        self.reserves_maximum = reserves_maximum
        self._held: list[int] | None = None

    def hold_back(self, held: list[int] | None) -> None:
        """Blocks that are dropped from now on go to `held`, with their references: the step that was launched
        last may still write to them. With None there is no such step.
        """
        self._held = held

    def give_back(self, held: list[int]) -> None:
        """The step that they were held back for is over."""
        self._blocks.free(held)

    def hash_full_blocks(self, spec: SequenceSpec, output_token_ids: Sequence[int]) -> list[bytes]:
        """Identities of the full blocks of the prompt and some output."""
        return hash_blocks(self._root(spec), [*spec.prompt_token_ids, *output_token_ids], self._size)

    def hash_all_blocks(self, group: SequenceGroup) -> list[bytes]:
        """Identities of the blocks of what is, or was, computed elsewhere, a partial last one included."""
        end = group.num_received_tokens
        hashes = list(group.block_hashes[: end // self._size])
        rest = group.context[len(hashes) * self._size : end]
        if rest.size:
            hashes.append(hash_block(hashes[-1] if hashes else self._root(group.spec), rest.tolist()))
        return hashes

    def computable_prefix(self, group: SequenceGroup) -> Sequence[bytes]:
        """Return the hashes of the blocks that may come from the cache.

        The last token is always computed, and so is every token whose logits give prompt log-probabilities.
        """
        num_tokens = len(group.context) - 1
        if group.num_launched_prompt_rows < group.num_prompt_rows:
            num_tokens = group.num_launched_prompt_rows
        return group.block_hashes[: num_tokens // self._size]

    def reserve(self, group: SequenceGroup, prefix: Sequence[bytes]) -> None:
        """Pin what the cache has of `prefix` and promise the rest; raises `BlockShortage`."""
        num_blocks = self._blocks_to_start(group, group.num_rows)
        group.block_table = self._blocks.reserve(num_blocks, prefix)
        group.num_reserved_blocks = num_blocks - len(group.block_table)
        group.num_computed_tokens = len(group.block_table) * self._size
        group.num_cached_tokens = group.num_computed_tokens

    def extend_from_cache(self, group: SequenceGroup) -> None:
        """Take blocks that were cached since `reserve`, as long as the next one is not allocated yet."""
        prefix = self.computable_prefix(group)
        while (num_held := len(group.block_table)) < len(prefix):
            if group.num_computed_tokens != num_held * self._size:
                return
            block = self._blocks.exchange(prefix[num_held])
            if block is None:
                return
            group.block_table.append(block)
            group.num_reserved_blocks -= 1
            group.num_computed_tokens += self._size
            group.num_cached_tokens += self._size

    def cover(self, group: SequenceGroup, num_tokens: int) -> None:
        """Allocate blocks for the first `num_tokens` tokens."""
        while len(group.block_table) * self._size < num_tokens:
            group.block_table.append(self._blocks.allocate())
            group.num_reserved_blocks -= 1

    def expect(self, group: SequenceGroup) -> Received:
        """Allocate blocks for the context; answers those whose content comes from elsewhere."""
        num_held = len(group.block_table)
        self.cover(group, len(group.context))
        hashes = tuple(self.hash_all_blocks(group))
        return Received(group.handle, tuple(group.block_table[: len(hashes)]), hashes, num_held)

    def accept(self, group: SequenceGroup, num_blocks: int) -> None:
        """The first `num_blocks` hold what was expected of them; those from the cache do in any case."""
        num_tokens = max(group.num_cached_tokens, num_blocks * self._size)
        group.num_computed_tokens = min(num_tokens, group.num_received_tokens)
        self.register_filled(group)

    def register_filled(self, group: SequenceGroup) -> Filled | None:
        """Share the blocks that were filled since the last time; answers them if there are any.

        The last ones include a partial block, which is told but not shared.
        """
        num_tokens = group.num_settled_tokens
        first, num_full = group.num_filled_blocks, num_tokens // self._size
        for index in range(first, num_full):
            self._blocks.register(group.block_table[index], group.block_hashes[index])
        group.num_filled_blocks = num_full
        is_complete = num_tokens == len(group.context)
        end = len(group.block_table) if is_complete else num_full
        if end == first:
            return None
        hashes = self.hash_all_blocks(group) if is_complete else group.block_hashes
        blocks = tuple(group.block_table[first:end])
        hashes_of = tuple(hashes[first:end])
        return Filled(group.handle, first, blocks, hashes_of, is_complete, num_tokens)

    def start_choices(self, group: SequenceGroup) -> list[tuple[int, int]]:
        """Replace the group's table by one for each of its choices.

        Answers the (source, target) copies to make before the next step.
        """
        copies = [copy for choice in group.sequences if (copy := self._start_choice(choice)) is not None]
        self.return_context(group)
        return copies

    def num_unpromised(self, choice: Choice, position: int) -> int:
        """How many blocks, 0 or 1, the token at `position` needs and nobody has promised."""
        has_block = len(choice.block_table) * self._size > position
        return 0 if has_block or choice.num_reserved_blocks else 1

    def grow(self, choice: Choice, position: int) -> int | None:
        """The block to append to the choice's table for its newest token, at `position`, unless it has one.

        The caller has seen that a block which is not promised is there.
        """
        if len(choice.block_table) * self._size > position:
            return None
        if choice.num_reserved_blocks:
            choice.num_reserved_blocks -= 1
        else:
            self._blocks.reserve(1)
        return self._blocks.allocate()

    def lose_context(self, group: SequenceGroup) -> None:
        """Drop what a group itself holds; its context is to be computed again."""
        group.num_known_tokens = max(group.num_known_tokens, group.num_computed_tokens)
        self.return_context(group)
        group.num_computed_tokens = group.num_cached_tokens = group.num_filled_blocks = 0

    def unique_blocks(self, group: SequenceGroup) -> list[int]:
        """Blocks of a running group, each once."""
        return list(dict.fromkeys(block for choice in group.sequences for block in choice.block_table))

    def swap_out(self, group: SequenceGroup, slots: Sequence[int]) -> None:
        """Drop the blocks of a running group; `unique_blocks` were copied to `slots`, in that order."""
        blocks = self.unique_blocks(group)
        index_of = {block: index for index, block in enumerate(blocks)}
        tables = tuple(tuple(index_of[block] for block in choice.block_table) for choice in group.sequences)
        for choice in group.sequences:
            self.register_written(choice)
        hashes = tuple(self._blocks.hash_of(block) for block in blocks)
        for choice in group.sequences:
            self.return_choice(choice)
        group.swapped = Swapped(tuple(slots), hashes, tables)

    def swap_in(self, group: SequenceGroup) -> list[tuple[int, int]]:
        """Give a swapped group blocks again, those that the pool still has among them.

        Answers the (slot, block) copies to make before the next step; raises `BlockShortage` unless there is
        one more block for each choice, so that it gets on.
        """
        swapped = group.swapped
        assert swapped is not None
        blocks, new = self._blocks.restore(swapped.hashes, spare=len(group.sequences))
        is_taken = [False] * len(blocks)
        for choice, table in zip(group.sequences, swapped.tables, strict=True):
            choice.block_table = [blocks[index] for index in table]
            self._blocks.share([blocks[index] for index in table if is_taken[index]])
            for index in table:
                is_taken[index] = True
        group.swapped = None
        return [(swapped.slots[index], blocks[index]) for index in new]

    def return_choice(self, choice: Choice) -> None:
        """Drop what a choice holds; full blocks of its output stay cached."""
        if choice.block_table:
            self.register_written(choice)
        self._drop(choice.block_table)
        self._blocks.unreserve(choice.num_reserved_blocks)
        choice.block_table, choice.num_reserved_blocks = [], 0

    def register_written(self, choice: Choice) -> None:
        """Share the full blocks of a running choice, up to the KV of all but its newest token."""
        # A block that the newest token would fill is not full; nor is one of a chunk in flight.
        num_written = len(choice.group.spec.prompt_token_ids) + len(choice.output_token_ids) - 1
        num_written = min([num_written, *choice.group.pending_chunks[:1]])
        while (choice.num_registered_blocks + 1) * self._size <= num_written:
            self._register_next(choice)

    def share_written(self, choice: Choice, num_blocks: int | None = None) -> tuple[list[int], int]:
        """One more reference to a choice's first blocks, by default all that are written to.

        Answers them, and how many tokens they hold; asked for more full blocks than there are, none.
        """
        # The newest token's KV is not written.
        num_written = len(choice.group.spec.prompt_token_ids) + len(choice.output_token_ids) - 1
        if num_blocks is None:
            num_blocks = -(-num_written // self._size)
        elif num_blocks * self._size > num_written:
            num_blocks = 0
        table = self._blocks.share(choice.block_table[:num_blocks])
        return table, min(num_written, num_blocks * self._size)

    def most_blocks(self, group: SequenceGroup, num_choices: int) -> int:
        """Blocks that the group can grow to with so many choices."""
        if group.goal is not Goal.DECODE:
            return blocks_needed(len(group.context), 1, 1, self._size)
        num_prompt = len(group.spec.prompt_token_ids)
        return blocks_needed(num_prompt, group.rules.limit, num_choices, self._size)

    def return_context(self, group: SequenceGroup) -> None:
        """Drop what a group itself holds."""
        self._drop(group.block_table)
        self._blocks.unreserve(group.num_reserved_blocks)
        group.block_table, group.num_reserved_blocks = [], 0

    def forget(self, tables: Iterable[Sequence[int]]) -> None:
        """Take blocks whose content is wrong out of the cache."""
        for table in tables:
            self._blocks.forget(table)

    def check_integrity(self, groups: Iterable[SequenceGroup]) -> None:
        """Assert that references and promises of all groups and their choices are all there are."""
        self._blocks.check_integrity(*self._held_by(groups))

    def check_some(self, groups: Iterable[SequenceGroup]) -> None:
        """Assert the same of all sums and of some blocks."""
        self._blocks.check_some(*self._held_by(groups))

    def _held_by(self, groups: Iterable[SequenceGroup]) -> tuple[list[Sequence[int]], int]:
        """All block tables, and the number of promised blocks."""
        holders: list[SequenceGroup | Choice] = []
        for group in groups:
            holders += [group, *group.sequences]
        num_reserved = sum(holder.num_reserved_blocks for holder in holders)
        tables: list[Sequence[int]] = [*(holder.block_table for holder in holders), self._held or ()]
        return tables, num_reserved

    def _start_choice(self, choice: Choice) -> tuple[int, int] | None:
        """Share the group's blocks; the first choice takes the partial last one, the others copy it."""
        group = choice.group
        copy = None
        if choice is group.sequences[0]:
            choice.block_table = self._blocks.share(group.block_table)
        else:
            fork = self._blocks.fork(group.block_table, len(group.context))
            choice.block_table, copy = fork.block_table, fork.copy
            group.num_reserved_blocks -= copy is not None
        choice.num_reserved_blocks = self._blocks_to_start(group, 1) - len(choice.block_table)
        group.num_reserved_blocks -= choice.num_reserved_blocks
        assert group.num_reserved_blocks >= 0
        # Those of the last chunk follow when it is over.
        num_filled = choice.num_registered_blocks = group.num_filled_blocks
        choice.last_hash = group.block_hashes[num_filled - 1] if num_filled else self._root(group.spec)
        return copy

    def _drop(self, table: Sequence[int]) -> None:
        if self._held is None:
            self._blocks.free(table)
        else:
            self._held.extend(table)

    def _register_next(self, choice: Choice) -> None:
        index, hashes = choice.num_registered_blocks, choice.group.block_hashes
        choice.last_hash = hashes[index] if index < len(hashes) else choice.hash_next_block(self._size)
        self._blocks.register(choice.block_table[choice.num_registered_blocks], choice.last_hash)
        choice.num_registered_blocks += 1

    def _blocks_to_start(self, group: SequenceGroup, num_choices: int) -> int:
        if group.goal is not Goal.DECODE or self.reserves_maximum:
            return self.most_blocks(group, num_choices)
        return blocks_needed(len(group.context), 1, num_choices, self._size)

    def _root(self, spec: SequenceSpec) -> bytes:
        return chain_root(self._fingerprint, spec.cache_salt)
