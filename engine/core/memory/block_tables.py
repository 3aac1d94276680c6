"""The blocks of groups and choices: what they hold, what they were promised, and what they share.

Blocks are shared by their names in the prefix cache: equal names mean equal content.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from engine.core.memory.stores import BlockPool
from engine.core.report import Filled, Received
from engine.core.sequence import Choice, Goal, SequenceGroup, Swapped
from scheduling.memory.block_hash import chain_root, hash_block, hash_blocks
from scheduling.prediction import blocks_needed
from scheduling.request import SequenceSpec


class BlockTables:
    """Keeps the block tables of groups and choices in step with the pool.

    A group's table covers its context. Once it runs, each choice has a table of its own and the group none.
    What a group is promised before it starts is its context, or with `reserves_maximum` all that its choices
    can grow to; otherwise they ask for each block of their output when they need it.
    """

    def __init__(self, blocks: BlockPool, names: BlockNames, *, reserves_maximum: bool) -> None:
        self._blocks = blocks
        self._size = self.block_size = blocks.block_size
        self.names = names
        self.reserves_maximum = reserves_maximum
        self._held: list[int] | None = None
        self._not_given_back: list[list[int]] = []
        """The blocks that are held back for each step in flight."""

    def hold_back(self, held: list[int] | None) -> None:
        """Blocks that are dropped from now on go to `held`, with their references: the step that was launched
        last may still write to them. With None there is no such step.
        """
        self._held = held
        if held is not None:
            self._not_given_back.append(held)

    def give_back(self, held: list[int]) -> None:
        """The step that they were held back for is over."""
        self._not_given_back = [other for other in self._not_given_back if other is not held]
        self._blocks.free(held)

    def computable_prefix(self, group: SequenceGroup) -> Sequence[bytes]:
        """Return the hashes of the blocks that may come from the cache.

        The last token is always computed, and so is every token whose logits give prompt log-probabilities.
        """
        num_tokens = group.num_context_tokens - 1
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

    def extend_from_cache(self, group: SequenceGroup) -> bool:
        """Take blocks that were cached since `reserve`, as long as the next one is not allocated yet.

        Return True if there were some.
        """
        first = len(group.block_table)
        if first >= len(group.block_hashes) or group.num_computed_tokens != first * self._size:
            return False
        for block_hash in self.computable_prefix(group)[first:]:
            block = self._blocks.exchange(block_hash)
            if block is None:
                break
            group.block_table.append(block)
        num_more = len(group.block_table) - first
        group.num_reserved_blocks -= num_more
        group.num_computed_tokens += num_more * self._size
        group.num_cached_tokens += num_more * self._size
        return num_more > 0

    def cover(self, group: SequenceGroup, num_tokens: int) -> None:
        """Allocate blocks for the first `num_tokens` tokens."""
        num_more = -(-num_tokens // self._size) - len(group.block_table)
        if num_more > 0:
            group.block_table += self._blocks.allocate(num_more)
            group.num_reserved_blocks -= num_more

    def expect(self, group: SequenceGroup) -> Received:
        """Allocate blocks for the context; return those whose content comes from elsewhere."""
        num_held = len(group.block_table)
        self.cover(group, group.num_context_tokens)
        hashes = tuple(self.names.of_received(group))
        return Received(group.handle, tuple(group.block_table[: len(hashes)]), hashes, num_held)

    def accept(self, group: SequenceGroup, num_blocks: int) -> None:
        """Count the first `num_blocks`, which were verified, and the cached ones; the rest is recomputed."""
        num_tokens = max(group.num_cached_tokens, num_blocks * self._size)
        group.num_computed_tokens = min(num_tokens, group.num_received_tokens)
        self.register_filled(group)

    def accept_read(self, group: SequenceGroup, num_blocks: int) -> None:
        """Count `num_blocks` blocks that were read, right behind the cached ones, as cached too."""
        group.num_computed_tokens += num_blocks * self._size
        group.num_cached_tokens = group.num_computed_tokens

    def register_filled(self, group: SequenceGroup) -> None:
        """Share the full blocks that were filled since the last time."""
        hashes = group.block_hashes
        num_full = group.num_written_tokens // self._size
        for index in range(group.num_filled_blocks, min(num_full, len(hashes))):
            group.block_table[index] = self._blocks.register(group.block_table[index], hashes[index])
        group.num_filled_blocks = num_full

    def publish_filled(self, group: SequenceGroup) -> Filled | None:
        """Share the blocks that were filled since the last time and return them, if there are any.

        The last ones include a partial block, which is reported but not shared.
        """
        first, num_tokens = group.num_filled_blocks, group.num_written_tokens
        self.register_filled(group)
        is_complete = num_tokens == group.num_context_tokens
        end = len(group.block_table) if is_complete else group.num_filled_blocks
        if end == first:
            return None
        hashes = self.names.of_received(group) if is_complete else group.block_hashes
        blocks = tuple(group.block_table[first:end])
        return Filled(group.handle, first, blocks, tuple(hashes[first:end]), is_complete, num_tokens)

    def start_choices(self, group: SequenceGroup) -> list[tuple[int, int]]:
        """Replace the group's table by one for each of its choices.

        The first choice takes it over, with its partial last block. The others share its full blocks and
        copy that one. Return the (source, target) copies to make before the next step.
        """
        first, *others = group.choices
        num_full, partial = divmod(group.num_context_tokens, self._size)
        copies = []
        for choice in others:
            choice.block_table = self._blocks.share(group.block_table[:num_full])
            if partial:  # both will write to it
                (target,) = self._blocks.allocate(1)
                choice.block_table.append(target)
                copies.append((group.block_table[num_full], target))
                group.num_reserved_blocks -= 1
        first.block_table, group.block_table = group.block_table, []
        for choice in group.choices:
            self._start_choice(choice)
        self.return_context(group)
        return copies

    def lacks_block(self, choice: Choice, position: int) -> bool:
        """Return True if the token at `position` needs a block that is not in the choice's table."""
        return self.num_lacking(choice, position) > 0

    def num_lacking(self, choice: Choice, position: int) -> int:
        """Return how many more blocks the choice's table needs to have the token at `position`."""
        return position // self._size + 1 - len(choice.block_table)

    def num_uncovered(self, choice: Choice, position: int) -> int:
        """Return how many tokens up to `position` are behind the last block of the choice's table."""
        return max(0, position + 1 - len(choice.block_table) * self._size)

    def grow(self, choices: Sequence[Choice], growths: Sequence[int]) -> None:
        """Append so many blocks to each choice's table; those that are not promised are there."""
        num_new = num_all = sum(growths)
        for choice, num_blocks in zip(choices, growths, strict=True):
            if choice.num_reserved_blocks:
                num_promised = min(num_blocks, choice.num_reserved_blocks)
                choice.num_reserved_blocks -= num_promised
                num_new -= num_promised
        if num_new:
            self._blocks.reserve(num_new)
        blocks, end = self._blocks.allocate(num_all), 0
        for choice, num_blocks in zip(choices, growths, strict=True):
            begin, end = end, end + num_blocks
            choice.block_table += blocks[begin:end]

    def lose_context(self, group: SequenceGroup) -> None:
        """Drop what a group itself holds; its context is to be computed again."""
        group.num_known_tokens = max(group.num_known_tokens, group.num_computed_tokens)
        self.return_context(group)
        group.num_computed_tokens = group.num_cached_tokens = group.num_filled_blocks = 0

    def rewind(self, piece: SequenceGroup) -> None:
        """Let the context include the output of the only choice, whose blocks are gone: compute it again."""
        (choice,) = piece.choices
        piece.extend_context(choice.num_outputs)
        piece.num_known_tokens = max(piece.num_known_tokens, piece.num_context_tokens - 1)
        piece.block_hashes = self.names.of_full_blocks(piece.spec, choice.output_token_ids)
        piece.num_computed_tokens = piece.num_cached_tokens = piece.num_filled_blocks = 0
        piece.first_tokens = None

    def unique_blocks(self, group: SequenceGroup) -> list[int]:
        """Return the blocks of a running group, each once."""
        if len(group.choices) == 1:
            return list(group.choices[0].block_table)
        return list(dict.fromkeys(block for choice in group.choices for block in choice.block_table))

    def swap_out(self, group: SequenceGroup, slots: Sequence[int]) -> None:
        """Drop the blocks of a running group; `unique_blocks` were copied to `slots`, in that order."""
        blocks = self.unique_blocks(group)
        tables: tuple[tuple[int, ...], ...] = (tuple(range(len(blocks))),)
        if len(group.choices) > 1:
            index_of = {block: index for index, block in enumerate(blocks)}
            tables = tuple(tuple(map(index_of.__getitem__, choice.block_table)) for choice in group.choices)
        for choice in group.choices:
            self.register_written(choice)
        hashes = tuple(self._blocks.hash_of(block) for block in self.unique_blocks(group))
        for choice in group.choices:
            self.return_choice(choice)
        group.swapped = Swapped(tuple(slots), hashes, tables)

    def swap_in(self, group: SequenceGroup) -> list[tuple[int, int]]:
        """Give a swapped group blocks again, those that the pool still has among them.

        Return the (slot, block) copies to make before the next step; raises `BlockShortage` unless there is
        one more block for each choice, so that it gets on.
        """
        swapped = group.swapped
        assert swapped is not None
        blocks, new = self._blocks.restore(swapped.hashes, spare=len(group.choices))
        is_taken = [False] * len(blocks)
        for choice, table in zip(group.choices, swapped.tables, strict=True):
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
        num_written = len(choice.group.spec.prompt_token_ids) + choice.num_outputs - 1
        num_written = min([num_written, *choice.group.pending_chunks[:1]])
        while (choice.num_registered_blocks + 1) * self._size <= num_written:
            name = self.names.of_next(choice)
            if name is None:
                return
            index = choice.num_registered_blocks
            choice.block_table[index] = self._blocks.register(choice.block_table[index], name)
            choice.last_hash = name
            choice.num_registered_blocks += 1

    def share_written(self, choice: Choice, num_blocks: int | None = None) -> tuple[list[int], int]:
        """Add a reference to a choice's first blocks, by default all that are written to.

        Return them, and how many tokens they contain; none if there are fewer full blocks than asked for.
        """
        # The newest token's KV is not written.
        num_written = len(choice.group.spec.prompt_token_ids) + choice.num_outputs - 1
        if num_blocks is None:
            num_blocks = -(-num_written // self._size)
        elif num_blocks * self._size > num_written:
            num_blocks = 0
        table = self._blocks.share(choice.block_table[:num_blocks])
        return table, min(num_written, num_blocks * self._size)

    def most_blocks(self, group: SequenceGroup, num_choices: int) -> int:
        """Blocks that the group can grow to with so many choices."""
        if group.goal is not Goal.DECODE:
            return blocks_needed(group.num_context_tokens, 1, 1, self._size)
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

    def check_integrity(
        self, groups: Iterable[SequenceGroup], loans: Iterable[Sequence[int]], *, is_whole: bool
    ) -> None:
        """Assert that references and promises of loans, groups and their choices are all there are."""
        holders: list[SequenceGroup | Choice] = []
        for group in groups:
            holders += [group, *group.choices]
        num_reserved = sum(holder.num_reserved_blocks for holder in holders)
        tables: list[Sequence[int]] = [*(holder.block_table for holder in holders), *loans]
        tables += self._not_given_back
        check = self._blocks.check_integrity if is_whole else self._blocks.check_some
        check(tables, num_reserved)

    def _start_choice(self, choice: Choice) -> None:
        """Pass the choice its share of what its group was promised."""
        group = choice.group
        choice.num_reserved_blocks = self._blocks_to_start(group, 1) - len(choice.block_table)
        group.num_reserved_blocks -= choice.num_reserved_blocks
        assert group.num_reserved_blocks >= 0
        # Those of the last chunk follow when it is over.
        choice.num_registered_blocks = group.num_filled_blocks
        choice.last_hash = self.names.of_last(group, group.num_filled_blocks)

    def _drop(self, table: Sequence[int]) -> None:
        if self._held is None:
            self._blocks.free(table)
        else:
            self._held.extend(table)

    def _blocks_to_start(self, group: SequenceGroup, num_choices: int) -> int:
        if group.goal is not Goal.DECODE or self.reserves_maximum:
            return self.most_blocks(group, num_choices)
        return blocks_needed(group.num_context_tokens, 1, num_choices, self._size)


class BlockNames(Protocol):
    """Names of full blocks, each of which follows from the one before."""

    def of_full_blocks(self, spec: SequenceSpec, output_token_ids: Sequence[int]) -> Sequence[bytes]:
        """Return the names of the leading full blocks of the prompt and some output that others may share."""
        ...

    def of_received(self, group: SequenceGroup) -> Sequence[bytes]:
        """Return the names of the blocks that are, or were, computed elsewhere.

        The last one may be partial.
        """
        ...

    def of_last(self, group: SequenceGroup, num_blocks: int) -> bytes:
        """Return the name of the last of the context's first `num_blocks`; the next one follows from it."""
        ...

    def of_next(self, choice: Choice) -> bytes | None:
        """Return the name of the choice's first block without one, all of whose tokens are known.

        None if it, and what follows it, is not to be found by others.
        """
        ...


class HashedNames:
    """Chained hashes of the tokens, the model, the tenant's salt and the adapter."""

    def __init__(self, fingerprint: str, block_size: int) -> None:
        self._fingerprint = fingerprint
        self._size = block_size

    def of_full_blocks(self, spec: SequenceSpec, output_token_ids: Sequence[int]) -> list[bytes]:
        return hash_blocks(self._root(spec), [*spec.prompt_token_ids, *output_token_ids], self._size)

    def of_received(self, group: SequenceGroup) -> list[bytes]:
        end = group.num_received_tokens
        hashes = list(group.block_hashes[: end // self._size])
        rest = group.context[len(hashes) * self._size : end]
        if rest.size:
            hashes.append(hash_block(hashes[-1] if hashes else self._root(group.spec), rest.tolist()))
        return hashes

    def of_last(self, group: SequenceGroup, num_blocks: int) -> bytes:
        return group.block_hashes[num_blocks - 1] if num_blocks else self._root(group.spec)

    def of_next(self, choice: Choice) -> bytes:
        index, hashes = choice.num_registered_blocks, choice.group.block_hashes
        return hashes[index] if index < len(hashes) else choice.hash_next_block(self._size)

    def _root(self, spec: SequenceSpec) -> bytes:
        return chain_root(self._fingerprint, spec.cache_salt, spec.adapter)
