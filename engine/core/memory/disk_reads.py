"""Blocks on a disk, as the worker core sees it, and which of them sequences wait for.

Sequences that begin alike wait for one read: the first of them reads, and the others look again when its read
is over. One thread reads, in order, so none of them would have the blocks sooner by a read of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.core.memory.block_tables import BlockTables
from engine.core.report import Reading
from engine.core.sequence import SequenceGroup
from scheduling.cost.cost_model import CostModel
from scheduling.memory.disk_reads import read_limit_s


class KVDisk(Protocol):
    """Keeps blocks that leave the pool, by their hashes. No call waits for the disk."""

    def keep(self, block: int, block_hash: bytes) -> None:
        """Copy a block of the pool, which is about to get other content, unless there is no room for it."""
        ...

    def forget(self, block_hash: bytes) -> None:
        """Drop a block whose content turned out wrong."""
        ...

    def num_leading(self, hashes: Sequence[bytes]) -> int:
        """Return how many of `hashes`, from the first on, can be read."""
        ...

    def read_s(self, num_blocks: int) -> float:
        """Return how long a read of so many blocks is expected to take from now on."""
        ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """Blocks behind a group's cached prefix that are worth waiting for, for `limit_s` at most."""

    hashes: tuple[bytes, ...]
    limit_s: float


class DiskReads:
    """The reads under way, and the groups that wait for those of others."""

    def __init__(self, disk: KVDisk, tables: BlockTables) -> None:
        self._disk = disk
        self._tables = tables
        self._reader_of: dict[bytes, int] = {}
        """The handle that reads, by the hash of the first block of its read."""
        self._first_of: dict[int, bytes] = {}
        self._followers: dict[int, list[SequenceGroup]] = {}
        """By the handle that reads."""

    def wanted(self, group: SequenceGroup, cost: CostModel) -> Wanted | None:
        """Return what the disk has behind a group's cached prefix, if it is worth reading."""
        hashes = self._tables.computable_prefix(group)[len(group.block_table) :]
        num_blocks = self._disk.num_leading(hashes)
        if not num_blocks:
            return None
        num_tokens, read_s = num_blocks * self._tables.block_size, self._disk.read_s(num_blocks)
        limit_s = read_limit_s(num_tokens, group.num_computed_tokens, read_s, cost)
        return None if limit_s is None else Wanted(tuple(hashes[:num_blocks]), limit_s)

    def follow(self, group: SequenceGroup, wanted: Wanted) -> bool:
        """Let a group wait for the read of another one, if that reads the same; return True if it does."""
        reader = self._reader_of.get(wanted.hashes[0])
        if reader is None:
            return False
        self._followers.setdefault(reader, []).append(group)
        return True

    def begin(self, group: SequenceGroup, wanted: Wanted) -> Reading:
        """Allocate blocks to read into."""
        num_held, first = len(group.block_table), wanted.hashes[0]
        num_tokens = len(wanted.hashes) * self._tables.block_size
        self._tables.cover(group, group.num_computed_tokens + num_tokens)
        self._reader_of[first], self._first_of[group.handle] = group.handle, first
        return Reading(group.handle, tuple(group.block_table[num_held:]), wanted.hashes, wanted.limit_s)

    def end(self, handle: int) -> list[SequenceGroup]:
        """Take in that a read is over; return the groups that have waited for it, those ended included."""
        del self._reader_of[self._first_of.pop(handle)]
        return self._followers.pop(handle, [])
