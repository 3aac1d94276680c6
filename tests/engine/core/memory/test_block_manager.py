"""The block manager against a model that recounts everything, and its single promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import takewhile

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.core.memory.block_manager import CHECKED_AT_ONCE, BlockManager, BlockShortage
from scheduling.memory.block_hash import hash_blocks
from tests.growth import MOST_GROWTH, growth

SIZE = 2


class Owner:
    """A sequence of the naive model."""

    def __init__(self, tokens: list[int], table: list[int], num_reserved: int) -> None:
        self.tokens = tokens
        self.table = table
        self.num_reserved = num_reserved
        self.num_written = len(table) * SIZE


class BlockManagerMachine(RuleBasedStateMachine):
    """Sequences that start, grow, fork and end, as the step loop lets them.

    The naive model keeps what every block holds: a block that is reused while referenced, or found under a
    hash that is not its content's, contradicts it.
    """

    @initialize(num_blocks=st.integers(1, 12))
    def make(self, num_blocks: int) -> None:
        self.blocks = BlockManager(num_blocks, SIZE)
        self.owners: list[Owner] = []
        self.content: dict[int, tuple[int, ...]] = {}
        self.directory: set[bytes] = set()

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9), extra=st.integers(0, 4))
    def start(self, tokens: list[int], extra: int) -> None:
        prefix = hash_blocks(b"root", tokens, SIZE)
        num_blocks = -(-(len(tokens) + extra) // SIZE)
        referenced = {block for other in self.owners for block in other.table}
        held = takewhile(lambda block: block is not None, map(self.blocks.find, prefix))
        num_wanted = num_blocks - len(referenced.intersection(held))
        free_before = self.blocks.num_available_blocks
        if num_wanted > free_before:
            with pytest.raises(BlockShortage) as shortage:
                self.blocks.reserve(num_blocks, prefix)
            assert (shortage.value.num_wanted, shortage.value.num_available) == (num_wanted, free_before)
            assert self.blocks.num_available_blocks == free_before
            return
        table = self.blocks.reserve(num_blocks, prefix)
        for index, block in enumerate(table):
            assert self.content[block] == tuple(tokens[: (index + 1) * SIZE])
        self.owners.append(Owner(tokens, table, num_blocks - len(table)))

    @precondition(lambda self: any(owner.num_reserved for owner in self.owners))
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from([owner for owner in self.owners if owner.num_reserved]))
        referenced = {block for other in self.owners for block in other.table}
        (block,) = self.blocks.allocate(1)
        assert block not in referenced
        owner.table.append(block)
        owner.num_reserved -= 1
        self.content[block] = ()

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def fill(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(self.owners))
        hashes = hash_blocks(b"root", owner.tokens, SIZE)
        index = owner.num_written // SIZE
        if index < min(len(owner.table), len(hashes)):
            self.content[owner.table[index]] = tuple(owner.tokens[: (index + 1) * SIZE])
            self.blocks.register(owner.table[index], hashes[index])
            owner.num_written += SIZE

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def take_cached_instead_of_allocating(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(self.owners))
        hashes = hash_blocks(b"root", owner.tokens, SIZE)
        index = len(owner.table)
        if owner.num_reserved == 0 or index >= len(hashes) or owner.num_written != index * SIZE:
            return
        block = self.blocks.exchange(hashes[index])
        if block is not None:
            assert self.content[block] == tuple(owner.tokens[: (index + 1) * SIZE])
            owner.table.append(block)
            owner.num_reserved -= 1
            owner.num_written += SIZE

    @precondition(lambda self: any(owner.num_reserved and owner.num_written for owner in self.owners))
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from([o for o in self.owners if o.num_reserved and o.num_written]))
        num_tokens = data.draw(st.integers(1, owner.num_written))
        num_full, partial = divmod(num_tokens, SIZE)
        table = self.blocks.share(owner.table[:num_full])
        assert table == owner.table[:num_full]
        if partial:
            (own,) = self.blocks.allocate(1)
            assert own not in {block for other in self.owners for block in other.table}
            table.append(own)
            self.content[own] = ()
            owner.num_reserved -= 1
        twin = Owner(owner.tokens[:num_tokens], table, 0)
        twin.num_written = num_full * SIZE
        self.owners.append(twin)

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(self.owners))
        self.owners.remove(owner)
        self.blocks.free(owner.table)
        self.blocks.unreserve(owner.num_reserved)

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def distrust(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(self.owners))
        self.blocks.forget(owner.table)
        for block_hash in hash_blocks(b"root", owner.tokens, SIZE):
            assert self.blocks.find(block_hash) not in owner.table

    @rule()
    def follow_the_directory(self) -> None:
        events = self.blocks.take_cache_events()
        assert self.directory.isdisjoint(events.added)
        assert self.directory.issuperset(events.removed)
        self.directory = (self.directory | set(events.added)) - set(events.removed)
        assert self.directory == set(self.blocks._block_of)

    @invariant()
    def every_block_is_in_one_place(self) -> None:
        if not hasattr(self, "blocks"):
            return
        tables = [owner.table for owner in self.owners]
        num_reserved = sum(owner.num_reserved for owner in self.owners)
        self.blocks.check_integrity(tables, num_reserved)
        self.blocks.check_some(tables, num_reserved)
        used = Counter(block for table in tables for block in table)
        places = [*self.blocks._free, *self.blocks._cached, *used]
        assert sorted(places) == list(range(self.blocks.num_blocks))
        assert self.blocks.num_available_blocks == self.blocks.num_blocks - len(used) - num_reserved


BlockManagerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestBlockManager = BlockManagerMachine.TestCase


def fill(blocks: BlockManager, tokens: list[int]) -> list[int]:
    """A sequence that computes `tokens`, whole blocks, without looking at the cache."""
    hashes = hash_blocks(b"root", tokens, SIZE)
    assert blocks.reserve(len(hashes)) == []
    table = [blocks.allocate(1)[0] for _ in hashes]
    for block, block_hash in zip(table, hashes, strict=True):
        blocks.register(block, block_hash)
    return table


def test_the_oldest_prefix_is_evicted_first_from_its_end() -> None:
    blocks = BlockManager(4, SIZE)
    old, new = [1, 1, 2, 2], [3, 3, 4, 4]
    blocks.free(fill(blocks, old))
    blocks.free(fill(blocks, new))
    # Using the old one again makes the new one the least recently used.
    blocks.free(blocks.reserve(2, hash_blocks(b"root", old, SIZE)))
    for left in ([True, True, True, False], [True, True, False, False], [True, False, False, False]):
        blocks.reserve(1)
        blocks.allocate(1)
        hashes = hash_blocks(b"root", old, SIZE) + hash_blocks(b"root", new, SIZE)
        assert [blocks.find(block_hash) is not None for block_hash in hashes] == left


def test_a_reservation_counts_pinned_cached_blocks_as_used() -> None:
    blocks = BlockManager(3, SIZE)
    tokens = [1, 1, 2, 2]
    blocks.free(fill(blocks, tokens))
    hashes = hash_blocks(b"root", tokens, SIZE)
    with pytest.raises(BlockShortage):
        blocks.reserve(4, hashes)
    assert len(blocks.reserve(3, hashes)) == 2
    assert blocks.num_available_blocks == 0
    # What is used already costs nothing more.
    with pytest.raises(BlockShortage):
        blocks.reserve(3, hashes)
    assert len(blocks.reserve(2, hashes)) == 2


def test_a_prefix_ends_at_its_first_missing_block() -> None:
    blocks = BlockManager(6, SIZE)
    table = fill(blocks, [1, 1, 2, 2, 3, 3])
    blocks.free(table)
    blocks.forget([table[1]])
    assert blocks.reserve(3, hash_blocks(b"root", [1, 1, 2, 2, 3, 3], SIZE)) == table[:1]


def test_integrity_is_refused_when_the_books_are_wrong() -> None:
    blocks = BlockManager(4, SIZE)
    table = fill(blocks, [1, 1, 2, 2])
    blocks.check_integrity([table], 0)
    for tables, num_reserved in (([], 0), ([table, table], 0), ([table[:1]], 0), ([table], 1)):
        with pytest.raises(AssertionError):
            blocks.check_integrity(tables, num_reserved)


def test_freeing_twice_is_noticed() -> None:
    blocks = BlockManager(4, SIZE)
    table = fill(blocks, [1, 1])
    blocks.free(table)
    with pytest.raises(AssertionError, match="freed twice"):
        blocks.free(table)


def test_a_shortage_says_what_is_missing() -> None:
    blocks = BlockManager(4, SIZE)
    blocks.reserve(3)
    with pytest.raises(BlockShortage, match=r"2 more blocks are needed, 1 of the pool's 4 are available"):
        blocks.reserve(2)


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 4), (4, 0)])
def test_an_empty_pool_is_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        BlockManager(num_blocks, block_size)


def test_blocks_are_restored_from_the_pool_where_it_still_has_them() -> None:
    blocks = BlockManager(6, 4)
    table = blocks.allocate(len(blocks.reserve(4)) or 4)
    blocks.register(table[0], b"used")
    blocks.register(table[1], b"cached")
    blocks.register(table[2], b"gone")
    kept = blocks.share(table[:1])
    blocks.free(table)
    blocks.forget([table[2]])
    with pytest.raises(BlockShortage):
        blocks.restore([b"used", b"cached", b"gone", None], spare=3)
    restored, new = blocks.restore([b"used", b"cached", b"gone", None], spare=2)
    assert restored[:2] == table[:2]
    assert new == [2, 3]
    assert [blocks.hash_of(block) for block in restored] == [b"used", b"cached", b"gone", None]
    assert blocks.num_exclusive([restored]) == 3
    assert blocks.num_exclusive([restored, kept]) == blocks.num_taken_blocks == 4
    blocks.check_integrity([restored, kept], 0)


def idle(num_blocks: int) -> tuple[BlockManager, list[int]]:
    """A pool, of which a tenth is held and the rest cached; and the block table of what is held."""
    blocks = BlockManager(num_blocks, SIZE)
    blocks.reserve(num_blocks)
    table = blocks.allocate(num_blocks)
    for block in table:
        blocks.register(block, block.to_bytes(16))
    blocks.free(table[num_blocks // 10 :])
    return blocks, table[: num_blocks // 10]


def test_a_check_in_passing_costs_the_same_in_a_pool_of_any_size() -> None:
    def prepare(num_blocks: int) -> Callable[[], object]:
        blocks, table = idle(num_blocks)
        return lambda: blocks.check_some([table], 0)

    assert growth(prepare) < MOST_GROWTH


def lose_a_reference(blocks: BlockManager) -> None:
    blocks._num_references[700] -= 1


def forget_where_it_is(blocks: BlockManager) -> None:
    del blocks._block_of[(2000).to_bytes(16)]


def cache_what_is_held(blocks: BlockManager) -> None:
    blocks._cached[700] = None
    blocks._num_used -= 1


def free_what_is_cached(blocks: BlockManager) -> None:
    blocks._free.append(blocks._cached.popitem()[0])


@pytest.mark.parametrize(
    "damage", [lose_a_reference, forget_where_it_is, cache_what_is_held, free_what_is_cached]
)
def test_checks_in_passing_come_to_every_block(damage: Callable[[BlockManager], None]) -> None:
    blocks, table = idle(10_000)
    num_calls = -(-10_000 // CHECKED_AT_ONCE)
    for _ in range(2 * num_calls):
        blocks.check_some([table[:400], table[400:]], 0)
    damage(blocks)

    def check_all() -> None:
        for _ in range(num_calls):
            blocks.check_some([table[:400], table[400:]], 0)

    with pytest.raises(AssertionError):
        check_all()


@pytest.mark.parametrize(
    ("tables", "num_reserved"), [([], 0), ([[0, 1], [0, 1]], 0), ([[0]], 0), ([[0, 1]], 1)]
)
def test_a_check_in_passing_sees_wrong_sums_at_once(tables: list[list[int]], num_reserved: int) -> None:
    blocks = BlockManager(4, SIZE)
    assert fill(blocks, [1, 1, 2, 2]) == [0, 1]
    blocks.check_some([[0, 1]], 0)
    with pytest.raises(AssertionError):
        blocks.check_some(tables, num_reserved)
