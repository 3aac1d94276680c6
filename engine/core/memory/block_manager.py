"""The blocks of the KV pool and their holders.

A block is in exactly one of three places: free (no content worth keeping), cached (nobody references it, but
it holds a known prefix and is kept until its place is needed, least recently used first), or used (referenced
by one or more sequences). Every block is promised to a sequence before it is allocated, so `allocate` never
fails: `reserve` says where there are too few. All operations cost O(1) per block.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

CHECKED_AT_ONCE = 256
"""Blocks that one partial check looks at: some tens of microseconds."""


class BlockShortage(Exception):
    """A reservation asks for more blocks than are free and not promised to others."""

    def __init__(self, num_wanted: int, num_available: int, num_blocks: int) -> None:
        super().__init__(
            f"{num_wanted} more blocks are needed, {num_available} of the pool's {num_blocks} are available"
        )
        self.num_wanted = num_wanted
        self.num_available = num_available
        self.num_blocks = num_blocks


@dataclass(frozen=True, slots=True)
class CacheEvents:
    """Hashes that entered and left the prefix cache since the last time somebody asked, in no order."""

    added: tuple[bytes, ...]
    removed: tuple[bytes, ...]


class Keeper(Protocol):
    """Keeps blocks that leave the prefix cache; `KVTiers` says what each call does."""

    def keep(self, blocks: Sequence[int], hashes: Sequence[bytes]) -> None: ...
    def forget(self, block_hash: bytes) -> None: ...


class BlockManager:
    """Reference-counted blocks with a prefix cache and reservations.

    `keeper` gets what leaves the cache, all blocks of one allocation together, and `on_allocated` is called
    with each block that is allocated.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        keeper: Keeper | None = None,
        on_allocated: Callable[[int], None] | None = None,
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks, block_size must be at least 1, not {num_blocks}, {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._keeper = keeper
        self._on_allocated = on_allocated
        self._num_references = [0] * num_blocks
        self._num_used = 0
        self._num_held = 0
        """References to all blocks together."""
        self._num_reserved = 0
        # Popped from the end: the lowest block first in a fresh pool, the last freed one afterwards.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._evicted: dict[int, bytes] = {}
        """The hashes of blocks that the allocation under way has taken out of the cache, in that order."""
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        # A net change per hash: what came and went between two reports is not news.
        self._events: dict[bytes, bool] = {}
        self._next_place = 0
        self._next_held = 0

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that hold a cached prefix and that no sequence references."""
        return len(self._cached)

    @property
    def num_unreferenced_blocks(self) -> int:
        return len(self._free) + len(self._cached)

    @property
    def num_available_blocks(self) -> int:
        """Unreferenced blocks that are not promised to a sequence."""
        return self.num_unreferenced_blocks - self._num_reserved

    @property
    def num_taken_blocks(self) -> int:
        """Blocks that are referenced or promised."""
        return self._num_used + self._num_reserved

    def hash_of(self, block: int) -> bytes | None:
        """Return the hash the block is registered under."""
        return self._hash_of[block]

    def num_exclusive(self, block_tables: Sequence[Sequence[int]]) -> int:
        """Blocks that nobody would reference any more if all of `block_tables` were freed."""
        if len(block_tables) == 1:  # mostly so, and asked of every running sequence when one has to give way
            return [self._num_references[block] for block in block_tables[0]].count(1)
        counts = Counter(block for table in block_tables for block in table)
        return sum(1 for block, count in counts.items() if self._num_references[block] == count)

    def find(self, block_hash: bytes) -> int | None:
        """The block that holds this content, used or cached."""
        return self._block_of.get(block_hash)

    def reserve(self, num_blocks: int, prefix: Sequence[bytes] = ()) -> list[int]:
        """Promise `num_blocks` to a sequence, the cached leading blocks of `prefix` among them.

        Those are pinned and returned; the caller owns a reference to each and `num_blocks - len(pinned)`
        allocations. Raises `BlockShortage` and changes nothing if that is more than there is.
        """
        held = self._match(prefix)
        assert len(held) <= num_blocks
        num_new = num_blocks - len(held)
        # A cached block that is pinned is one less to allocate, and one less that is free.
        num_wanted = num_new + sum(1 for block in held if self._num_references[block] == 0)
        if num_wanted > self.num_available_blocks:
            raise BlockShortage(num_wanted, self.num_available_blocks, self.num_blocks)
        for block in held:
            self._pin(block)
        self._num_reserved += num_new
        return held

    def unreserve(self, num_blocks: int) -> None:
        """Give back promised blocks that were not allocated."""
        assert 0 <= num_blocks <= self._num_reserved
        self._num_reserved -= num_blocks

    def exchange(self, block_hash: bytes) -> int | None:
        """Pin the block that holds this content in place of one promised block, if there is one."""
        block = self._block_of.get(block_hash)
        if block is None:
            return None
        self.unreserve(1)
        self._pin(block)
        return block

    def allocate(self, num_blocks: int) -> list[int]:
        """Return blocks out of the caller's reservation, each with one reference and undefined content."""
        self.unreserve(num_blocks)
        blocks = [self._allocate() for _ in range(num_blocks)]
        self._keep_evicted()
        return blocks

    def _allocate(self) -> int:
        block = self._free.pop() if self._free else self._evict()
        self._num_references[block] = 1
        self._num_held += 1
        self._num_used += 1
        if self._on_allocated is not None:
            self._on_allocated(block)
        return block

    def restore(self, hashes: Sequence[bytes | None], spare: int) -> tuple[list[int], list[int]]:
        """A block, with one reference, for each of `hashes`: the one that holds it, or else a new one.

        Return the blocks, and the indexes of the new ones, whose content the caller puts back at once.
        Raises `BlockShortage` and changes nothing unless `spare` more blocks stay available.
        """
        held = [None if block_hash is None else self.find(block_hash) for block_hash in hashes]
        num_new = held.count(None)
        num_wanted = num_new + spare + sum(1 for b in held if b is not None and not self._num_references[b])
        if num_wanted > self.num_available_blocks:
            raise BlockShortage(num_wanted, self.num_available_blocks, self.num_blocks)
        for block in held:
            if block is not None:
                self._pin(block)
        blocks = [self._allocate() if block is None else block for block in held]
        self._keep_evicted()
        new = [index for index, block in enumerate(held) if block is None]
        for index in new:
            block_hash = hashes[index]
            if block_hash is not None:
                self.register(blocks[index], block_hash)
        return blocks, new

    def share(self, block_table: Sequence[int]) -> list[int]:
        """One more reference to every block."""
        for block in block_table:
            self._pin(block)
        return list(block_table)

    def register(self, block: int, block_hash: bytes) -> int:
        """The used `block` is full and will not change: other sequences may share it from now on.

        Return the block that has its place in its sequence's table: itself.
        """
        assert self._num_references[block] > 0
        if block_hash not in self._block_of and self._hash_of[block] is None:
            self._hash_of[block] = block_hash
            self._block_of[block_hash] = block
            self._note(block_hash, added=True)
        return block  # where the content was there already, this copy of it is freed with its sequence

    def forget(self, blocks: Iterable[int]) -> None:
        """Take blocks whose content turned out wrong out of the cache; who references them keeps them."""
        for block in blocks:
            block_hash = self._hash_of[block]
            if block_hash is not None and self._keeper is not None:
                self._keeper.forget(block_hash)
            self._unhash(block)
            if block in self._cached:
                del self._cached[block]
                self._free.append(block)

    def free(self, block_table: Sequence[int]) -> None:
        """Drop one reference to each block; what nobody references any more is cached or free."""
        # Last block first: a prefix without its continuation is still useful, the reverse is not.
        for block in reversed(block_table):
            count = self._num_references[block] - 1
            assert count >= 0, f"block {block} is freed twice"
            self._num_references[block] = count
            self._num_held -= 1
            if count > 0:
                continue
            self._num_used -= 1
            if self._hash_of[block] is None:
                self._free.append(block)
            else:
                self._cached[block] = None

    def cached(self) -> list[tuple[int, bytes]]:
        """Return the blocks that nobody references, with their hashes, the most recently used first."""
        hashes = ((block, self._hash_of[block]) for block in reversed(self._cached))
        return [(block, block_hash) for block, block_hash in hashes if block_hash is not None]

    def take_cache_events(self) -> CacheEvents:
        """Return the changes to report to the prefix directory."""
        if not self._events:
            return CacheEvents((), ())
        events, self._events = self._events, {}
        added = tuple(block_hash for block_hash, is_added in events.items() if is_added)
        removed = tuple(block_hash for block_hash, is_added in events.items() if not is_added)
        return CacheEvents(added, removed)

    def check_integrity(self, block_tables: Collection[Sequence[int]], num_reserved: int) -> None:
        """Assert that every block is in one place, and that references and promises are the sequences'.

        Costs O(pool): for tests. `check_some` is for workers.
        """
        self._check_sums(block_tables, num_reserved)
        counts = Counter(block for table in block_tables for block in table)
        for block, held in enumerate(self._num_references):
            count = counts[block]
            assert held == count, f"block {block} has {held} references, {count} in block tables"
            self._check_place(block)
        assert len(counts) == self._num_used, f"{self._num_used} used, {len(counts)} in block tables"
        assert len(set(self._free)) == len(self._free)

    def check_some(self, block_tables: Collection[Sequence[int]], num_reserved: int) -> None:
        """Assert that all sums are right, and the books of some blocks, others each time.

        A block that is lost, or freed twice, shows in the sums at once. Two that have changed places show
        within pool / `CHECKED_AT_ONCE` calls. Costs O(block tables), not O(blocks).
        """
        num_held = self._check_sums(block_tables, num_reserved)
        first = self._next_place
        end = min(first + CHECKED_AT_ONCE, self.num_blocks)
        for block in range(first, end):
            self._check_place(block)
        self._next_place = end % self.num_blocks
        first = self._next_held if self._next_held < num_held else 0
        self._next_held = first + CHECKED_AT_ONCE
        for block in _slice(block_tables, first, self._next_held):
            assert self._num_references[block] > 0, f"block {block} is in a block table and has no reference"

    def _check_sums(self, block_tables: Iterable[Sequence[int]], num_reserved: int) -> int:
        """Return the length of all tables together."""
        assert len(self._free) + len(self._cached) + self._num_used == self.num_blocks
        assert self._num_reserved == num_reserved, f"{self._num_reserved} promised, {num_reserved} expected"
        assert self.num_available_blocks >= 0
        num_held = sum(map(len, block_tables))
        assert self._num_held == num_held, f"{self._num_held} references, {num_held} in block tables"
        return num_held

    def _check_place(self, block: int) -> None:
        block_hash, is_free = self._hash_of[block], self._num_references[block] == 0
        assert (block in self._cached) == (is_free and block_hash is not None), f"block {block} is misplaced"
        assert block_hash is None or self._block_of.get(block_hash) == block, f"block {block} is not found"

    def _match(self, prefix: Sequence[bytes]) -> list[int]:
        held: list[int] = []
        for block_hash in prefix:
            block = self._block_of.get(block_hash)
            if block is None:
                break
            held.append(block)
        return held

    def _pin(self, block: int) -> None:
        if self._num_references[block] == 0:
            del self._cached[block]
            self._num_used += 1
        self._num_references[block] += 1
        self._num_held += 1

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        block_hash = self._hash_of[block]
        if block_hash is not None and self._keeper is not None:
            self._evicted[block] = block_hash
        self._unhash(block)
        return block

    def _keep_evicted(self) -> None:
        """Give the keeper what an allocation took out of the cache, before anything writes to it."""
        if self._evicted and self._keeper is not None:
            evicted, self._evicted = self._evicted, {}
            self._keeper.keep(tuple(evicted), tuple(evicted.values()))

    def _unhash(self, block: int) -> None:
        block_hash = self._hash_of[block]
        if block_hash is None:
            return
        self._hash_of[block] = None
        del self._block_of[block_hash]
        self._note(block_hash, added=False)

    def _note(self, block_hash: bytes, *, added: bool) -> None:
        if self._events.get(block_hash, added) != added:
            del self._events[block_hash]
        else:
            self._events[block_hash] = added


def _slice(tables: Iterable[Sequence[int]], first: int, end: int) -> Iterator[int]:
    """Items `first` to `end` of all tables, one after the other."""
    for table in tables:
        if first < len(table):
            yield from table[first:end]
        first, end = max(0, first - len(table)), end - len(table)
        if end <= 0:
            return
