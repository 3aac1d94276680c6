"""Blocks in other tiers or at another worker, as the worker core sees them, and the sequences that wait.

Sequences that begin alike wait for one read: the first of them reads, and the others look again when its read
is over. None of them would have the blocks sooner by a read of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.core.memory.block_tables import BlockTables
from engine.core.report import Reading
from engine.core.sequence import SequenceGroup
from scheduling.cost.cost_model import CostModel
from scheduling.memory.prefix_reads import PrefixRead, TierHit, choose_read
from scheduling.request import PrefixSource


class KVTiers(Protocol):
    """Keeps blocks that leave the pool, by their hashes. No call waits for a disk."""

    def keep(self, blocks: Sequence[int], hashes: Sequence[bytes]) -> None:
        """Copy blocks of the pool, which are about to get other content, as far as there is room for them.

        Whatever the calling thread puts on the device afterwards runs behind the copies.
        """
        ...

    def forget(self, block_hash: bytes) -> None:
        """Drop a block whose content turned out wrong."""
        ...

    def readable(self, hashes: Sequence[bytes]) -> Sequence[TierHit]:
        """Return how many of `hashes`, from the first on, can be read, and how long that is expected to take.

        There is an entry for those that only fast tiers are needed for, and one for all.
        """
        ...


class KVLinks(Protocol):
    """The links to other workers that lend blocks. No call waits for them."""

    def fetch_s(self, incarnation: str, num_blocks: int) -> float:
        """Return how long it is expected to take from now on to fetch so many blocks from a process."""
        ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """Blocks behind a group's cached prefix that are worth waiting for, for `limit_s` at most."""

    hashes: tuple[bytes, ...]
    limit_s: float
    source: PrefixSource | None
    """None: the worker's own tiers."""


@dataclass(slots=True)
class _Read:
    """A read under way, and the groups that wait for it."""

    wanted: Wanted
    followers: list[SequenceGroup]


class PrefixReads:
    """The reads under way, and the groups that wait for those of others."""

    def __init__(self, tiers: KVTiers | None, links: KVLinks | None, tables: BlockTables) -> None:
        self._tiers = tiers
        self._links = links
        self._tables = tables
        self._reader_of: dict[bytes, int] = {}
        """The handle that reads, by the hash of the first block of its read."""
        self._reads: dict[int, _Read] = {}
        """By the handle that reads."""

    def wanted(self, group: SequenceGroup, cost: CostModel, *, fetches: bool = True) -> Wanted | None:
        """Return the blocks behind a group's cached prefix that are worth reading, if there are any.

        Only a group that `fetches` looks at other workers.
        """
        source = group.spec.prefix_source if fetches and self._links is not None else None
        if self._tiers is None and source is None:
            return None
        hashes = self._tables.computable_prefix(group)[len(group.block_table) :]
        ways = self._ways(group, source, hashes)
        reads = [PrefixRead(num_blocks * self._tables.block_size, read_s) for num_blocks, read_s, _ in ways]
        chosen = choose_read(reads, group.num_computed_tokens, cost)
        if chosen is None:
            return None
        num_blocks, _, where = ways[chosen.place]
        return Wanted(tuple(hashes[:num_blocks]), chosen.limit_s, where)

    def follow(self, group: SequenceGroup, wanted: Wanted) -> bool:
        """Let a group wait for the read of another one, if that reads the same; return True if it does."""
        reader = self._reader_of.get(wanted.hashes[0])
        if reader is None:
            return False
        self._reads[reader].followers.append(group)
        return True

    def begin(self, group: SequenceGroup, wanted: Wanted) -> Reading:
        """Allocate blocks to read into."""
        num_held = len(group.block_table)
        num_tokens = len(wanted.hashes) * self._tables.block_size
        self._tables.cover(group, group.num_computed_tokens + num_tokens)
        self._reader_of[wanted.hashes[0]] = group.handle
        self._reads[group.handle] = _Read(wanted, [])
        blocks = tuple(group.block_table[num_held:])
        return Reading(group.handle, blocks, wanted.hashes, wanted.limit_s, wanted.source)

    def end(self, handle: int) -> list[SequenceGroup]:
        """Take in that a read is over; return the groups that have waited for it, those ended included."""
        read = self._reads.pop(handle)
        del self._reader_of[read.wanted.hashes[0]]
        return read.followers

    def _ways(
        self, group: SequenceGroup, source: PrefixSource | None, hashes: Sequence[bytes]
    ) -> list[tuple[int, float, PrefixSource | None]]:
        """Return how many blocks can be read, how long that takes, and from where, for each way to read."""
        ways: list[tuple[int, float, PrefixSource | None]] = []
        if self._tiers is not None:
            ways += [(hit.num_blocks, hit.read_s, None) for hit in self._tiers.readable(hashes)]
        if self._links is not None and source is not None:
            num_blocks = min(len(hashes), source.num_blocks - len(group.block_table))
            if num_blocks > 0:
                ways.append((num_blocks, self._links.fetch_s(source.incarnation, num_blocks), source))
        return ways
