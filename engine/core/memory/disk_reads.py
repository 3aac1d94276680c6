"""Blocks on a disk, as the worker core sees it, and which of them a sequence waits for."""

from __future__ import annotations

from collections.abc import Sequence
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


def begin_read(disk: KVDisk, tables: BlockTables, group: SequenceGroup, cost: CostModel) -> Reading | None:
    """Allocate the blocks behind a group's cached prefix that are worth reading; None if there are none."""
    num_held = len(group.block_table)
    hashes = tables.computable_prefix(group)[num_held:]
    num_blocks = disk.num_leading(hashes)
    if not num_blocks:
        return None
    num_tokens = num_blocks * tables.block_size
    limit_s = read_limit_s(num_tokens, group.num_computed_tokens, disk.read_s(num_blocks), cost)
    if limit_s is None:
        return None
    tables.cover(group, group.num_computed_tokens + num_tokens)
    return Reading(group.handle, tuple(group.block_table[num_held:]), tuple(hashes[:num_blocks]), limit_s)
