"""A worker's KV blocks and host memory, counted.

Only blocks of shared prefixes have a name and a number of their own. All other blocks of a table are
`NAMELESS`. When their sequence has ended they stay cached behind what was used before, and take their place
in the order of eviction, as they would on an engine; the last one is taken to be partly filled. A nameless
block has one owner, so sequences have one choice each.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence

from engine.core.memory.block_manager import BlockShortage
from engine.core.memory.stores import default_num_slots
from scheduling.memory.preemption import SwapSpeed

NAMELESS = -1


class CountedPool:
    """Implements `engine.core.memory.stores.BlockPool`."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._num_nameless = 0
        """Used blocks without a name."""
        self._num_reserved = 0
        self._block_of: dict[bytes, int] = {}
        self._name_of: dict[int, bytes] = {}
        self._num_references: dict[int, int] = {}
        """Number of used blocks that have a name."""
        self._cached: OrderedDict[int, int] = OrderedDict()
        """The number of blocks by the block, or by a negative number for some without a name."""
        self._num_cached = 0
        self._next_block = 0
        self._next_run = NAMELESS

    @property
    def num_cached_blocks(self) -> int:
        return self._num_cached

    @property
    def num_available_blocks(self) -> int:
        return self.num_blocks - self.num_taken_blocks

    @property
    def num_taken_blocks(self) -> int:
        return self._num_nameless + len(self._num_references) + self._num_reserved

    @property
    def is_empty(self) -> bool:
        """True if nothing is held or promised."""
        return self.num_taken_blocks == 0

    def num_held(self, names: Sequence[bytes]) -> int:
        """Return how many leading blocks of a prefix are there, used or cached."""
        return next((count for count, name in enumerate(names) if name not in self._block_of), len(names))

    def reserve(self, num_blocks: int, prefix: Sequence[bytes] = ()) -> list[int]:
        held = [self._block_of[name] for name in prefix[: self.num_held(prefix)]]
        num_new = num_blocks - len(held)
        num_wanted = num_new + sum(block not in self._num_references for block in held)
        if num_wanted > self.num_available_blocks:
            raise BlockShortage(num_wanted, self.num_available_blocks, self.num_blocks)
        for block in held:
            self._pin(block)
        self._num_reserved += num_new
        return held

    def unreserve(self, num_blocks: int) -> None:
        assert 0 <= num_blocks <= self._num_reserved
        self._num_reserved -= num_blocks

    def exchange(self, block_hash: bytes) -> int | None:
        block = self._block_of.get(block_hash)
        if block is not None:
            self.unreserve(1)
            self._pin(block)
        return block

    def allocate(self, num_blocks: int) -> list[int]:
        self.unreserve(num_blocks)
        self._num_nameless += num_blocks
        self._evict()
        return [NAMELESS] * num_blocks

    def restore(self, hashes: Sequence[bytes | None], spare: int) -> tuple[list[int], list[int]]:
        held = [None if name is None else self._block_of.get(name) for name in hashes]
        num_new = held.count(None)
        num_pinned = sum(block is not None and block not in self._num_references for block in held)
        if num_new + num_pinned + spare > self.num_available_blocks:
            raise BlockShortage(num_new + num_pinned + spare, self.num_available_blocks, self.num_blocks)
        for block in held:
            if block is not None:
                self._pin(block)
        self._num_reserved += num_new
        fresh = iter(self.allocate(num_new))
        blocks = [next(fresh) if block is None else block for block in held]
        new = [index for index, block in enumerate(held) if block is None]
        for index in new:
            name = hashes[index]
            if name is not None:
                blocks[index] = self.register(blocks[index], name)
        return blocks, new

    def share(self, block_table: Sequence[int]) -> list[int]:
        assert NAMELESS not in block_table, "a nameless block has one owner"
        for block in block_table:
            self._pin(block)
        return list(block_table)

    def free(self, block_table: Sequence[int]) -> None:
        num_nameless = block_table.count(NAMELESS)
        self._num_nameless -= num_nameless
        if num_nameless > 1:
            self._next_run -= 1
            self._cache(self._next_run, num_nameless - 1)
        if num_nameless < len(block_table):
            for block in reversed(block_table):
                if block != NAMELESS:
                    self._drop(block)
        self._evict()

    def register(self, block: int, block_hash: bytes) -> int:
        if block != NAMELESS or block_hash in self._block_of:
            return block
        block = self._next_block
        self._next_block += 1
        self._block_of[block_hash], self._name_of[block] = block, block_hash
        self._num_nameless -= 1
        self._num_references[block] = 1
        return block

    def forget(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            name = self._name_of.pop(block, None)
            if name is not None:
                del self._block_of[name]

    def hash_of(self, block: int) -> bytes | None:
        return self._name_of.get(block)

    def num_exclusive(self, block_tables: Sequence[Sequence[int]]) -> int:
        return sum(
            block == NAMELESS or self._num_references[block] == 1
            for table in block_tables
            for block in table
        )  # fmt: skip

    def check_integrity(self, block_tables: Collection[Sequence[int]], num_reserved: int) -> None:
        """Assert that references and promises are the sequences'."""
        self.check_some(block_tables, num_reserved)
        named = [block for table in block_tables for block in table if block != NAMELESS]
        assert sorted(self._num_references) == sorted(set(named))

    def check_some(self, block_tables: Collection[Sequence[int]], num_reserved: int) -> None:
        """Assert that all sums are right."""
        assert self._num_reserved == num_reserved
        assert self._num_cached == sum(self._cached.values())
        num_held = self._num_nameless + sum(self._num_references.values())
        assert num_held == sum(map(len, block_tables))

    def _pin(self, block: int) -> None:
        count = self._num_references.get(block, 0)
        if not count:
            self._num_cached -= self._cached.pop(block)
        self._num_references[block] = count + 1

    def _drop(self, block: int) -> None:
        count = self._num_references[block] - 1
        if count:
            self._num_references[block] = count
        else:
            del self._num_references[block]
            if block in self._name_of:
                self._cache(block, 1)

    def _cache(self, key: int, num_blocks: int) -> None:
        self._cached[key] = num_blocks
        self._num_cached += num_blocks

    def _evict(self) -> None:
        """Drop what was cached first, until there is a place for every used block."""
        most = self.num_blocks - self._num_nameless - len(self._num_references)
        while self._num_cached > most:
            key, num_blocks = self._cached.popitem(last=False)
            kept = min(num_blocks - 1, max(0, num_blocks - (self._num_cached - most)))
            self._num_cached -= num_blocks - kept
            if kept:
                self._cached[key] = kept
                self._cached.move_to_end(key, last=False)
            elif key >= 0:
                self.forget([key])


class CountedSwap:
    """Implements `engine.core.memory.stores.SwapMemory`: copies take time, and nothing else."""

    def __init__(self, num_blocks: int, speed: SwapSpeed) -> None:
        self.num_free = default_num_slots(num_blocks, speed.block_bytes, is_page_locked=True)
        self._num_slots = self.num_free
        self.block_bytes = speed.block_bytes
        self.bytes_per_s = speed.bytes_per_s
        self._copied_s = 0.0

    def store(self, blocks: Sequence[int]) -> list[int]:
        self.num_free -= len(blocks)
        self._copy(len(blocks))
        return [0] * len(blocks)

    def load(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        self._copy(len(slots))

    def release(self, slots: Sequence[int]) -> None:
        self.num_free += len(slots)

    def take_copied_s(self) -> float:
        """Return the seconds of copies that the next step waits for, once."""
        copied_s, self._copied_s = self._copied_s, 0.0
        return copied_s

    def check_integrity(self, held: Sequence[Sequence[int]]) -> None:
        self.check_some(held)

    def check_some(self, held: Sequence[Sequence[int]]) -> None:
        assert sum(map(len, held)) + self.num_free == self._num_slots

    def _copy(self, num_blocks: int) -> None:
        self._copied_s += num_blocks * self.block_bytes / self.bytes_per_s
