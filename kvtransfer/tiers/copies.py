"""Slots of host memory for blocks of a pool, and the copies between the two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from kvtransfer.pools.host_blocks import checksum
from kvtransfer.pools.pool import BlockPool


class Mark(Protocol):
    """A point in a device's work, as the engine reports it."""

    def synchronize(self) -> None:
        """Wait until everything before it is done."""


class TierCopies(Protocol):
    """Slots as large as a block each, and copies from and to blocks of the pool."""

    @property
    def slots(self) -> BlockPool: ...

    @property
    def is_immediate(self) -> bool:
        """Return True if `store` copies before it returns; else it is best called for many blocks at once."""

    @property
    def num_loaded_at_once(self) -> int:
        """Return how many blocks `load` is best called for: who stops a read waits for so many."""

    def store(self, blocks: Sequence[int], slots: Sequence[int]) -> Iterable[int]:
        """Copy blocks to slots, ahead of all that the calling thread puts on the device from now on.

        Return the blocks' checksums, in order. To iterate over them, on any thread, waits for the copies.
        """

    def load(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy slots to blocks that nothing else uses, and wait for it. May be called on any thread."""


class InPlaceCopies:
    """Implements `TierCopies` for a pool in host memory. The memory of slots is taken when they are used."""

    is_immediate = True
    num_loaded_at_once = 1

    def __init__(self, pool: BlockPool, num_slots: int) -> None:
        self._pool = pool
        self.slots = _Slots(num_slots, pool.block_bytes)

    def store(self, blocks: Sequence[int], slots: Sequence[int]) -> list[int]:
        sums = []
        for block, slot in zip(blocks, slots, strict=True):
            data = self._pool.block_bytes_view(block)
            sums.append(checksum(data))
            self.slots.block_bytes_view(slot)[:] = data
        return sums

    def load(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        for slot, block in zip(slots, blocks, strict=True):
            self._pool.block_bytes_view(block)[:] = self.slots.block_bytes_view(slot)


class _Slots:
    """Implements `BlockPool`."""

    fd = None

    def __init__(self, num_slots: int, block_bytes: int) -> None:
        self.num_blocks = num_slots
        self.block_bytes = block_bytes
        self._memory = memoryview(bytearray(num_slots * block_bytes))

    def block_bytes_view(self, block: int) -> memoryview:
        return self._memory[block * self.block_bytes : (block + 1) * self.block_bytes]
