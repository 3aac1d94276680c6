"""Blocks that are counted come out as blocks that are kept one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.core.memory.block_manager import BlockManager, BlockShortage
from engine.core.memory.stores import BlockPool
from sim.workers.counted_pool import CountedPool

NUM_BLOCKS = 12
PREFIXES = [[b"a0", b"a1", b"a2"], [b"b0", b"b1"], [b"a0", b"c1"]]


class Sequences:
    """Sequences on one pool, each with a named prefix and blocks of its own behind it."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.tables: list[tuple[list[int], int]] = []

    def start(self, names: list[bytes], num_own: int) -> int | None:
        """Return the number of blocks that were cached, or None if there is no room."""
        num_blocks = len(names) + num_own
        try:
            table = self.pool.reserve(num_blocks, names)
        except BlockShortage:
            return None
        num_cached = len(table)
        table += self.pool.allocate(len(names) - num_cached)
        for index, name in enumerate(names):
            table[index] = self.pool.register(table[index], name)
        self.tables.append((table, num_own))
        return num_cached

    def grow(self, index: int) -> None:
        """Allocate a block that was promised."""
        table, num_promised = self.tables[index % len(self.tables)]
        if num_promised:
            table += self.pool.allocate(1)
            self.tables[index % len(self.tables)] = table, num_promised - 1

    def end(self, index: int) -> None:
        table, num_promised = self.tables.pop(index % len(self.tables))
        self.pool.free(table)
        self.pool.unreserve(num_promised)

    def check(self) -> None:
        self.pool.check_integrity([table for table, _ in self.tables], sum(own for _, own in self.tables))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("start"), st.integers(0, 2), st.integers(1, 4)),
            st.tuples(st.sampled_from(["grow", "end"]), st.integers(0, 5), st.just(0)),
        ),
        max_size=40,
    )
)
def test_counts_are_those_of_physical_blocks(actions: list[tuple[str, int, int]]) -> None:
    # There is room for all: what is evicted depends on blocks without a name, which are free on one of them.
    counted, physical = (Sequences(pool(40 * 7, 4)) for pool in (CountedPool, BlockManager))
    for action, which, num_own in actions:
        if action == "start":
            assert counted.start(PREFIXES[which], num_own) == physical.start(PREFIXES[which], num_own)
        elif counted.tables:
            for sequences in (counted, physical):
                getattr(sequences, action)(which)
        for sequences in (counted, physical):
            sequences.check()
        assert counted.pool.num_taken_blocks == physical.pool.num_taken_blocks
        tables = ([table for table, _ in sequences.tables] for sequences in (counted, physical))
        found, expected = (
            [sequences.pool.num_exclusive([table]) for table in own]
            for sequences, own in zip((counted, physical), tables, strict=True)
        )
        assert found == expected


def test_a_named_prefix_is_found_again_until_its_place_is_needed() -> None:
    sequences = Sequences(CountedPool(NUM_BLOCKS, 4))
    assert sequences.start(PREFIXES[0], 2) == 0
    sequences.end(0)
    assert sequences.pool.num_cached_blocks == len(PREFIXES[0])
    assert sequences.start(PREFIXES[0], 1) == len(PREFIXES[0])
    sequences.end(0)
    assert sequences.start([], NUM_BLOCKS) == 0
    for _ in range(NUM_BLOCKS):
        sequences.grow(0)
    sequences.check()
    sequences.end(0)
    assert sequences.start(PREFIXES[0], 0) == 0
