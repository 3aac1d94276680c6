"""Page-locked host memory for the tiers of a pool on a GPU, and its copies beside the steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from engine.core.report import Mark
from engine.device import delay_steps, mark_steps
from engine.kv.block_copies import BlockCopies
from engine.kv.kv_pool import KVPool
from kvtransfer.pools.host_blocks import HostBlocks, checksum_blocks
from kvtransfer.tiers.copies import InPlaceCopies, TierCopies

LOCKED_STAGING_BYTES = 1024**3
"""Page-locked memory for blocks on their way to a disk. What a step or a handoff allocates leaves the device
at once, before the disk has written any of it: 8192 tokens of an 8B model are so large."""


def copies_for(pool: KVPool) -> Callable[[int], TierCopies]:
    """Return what makes so many slots of host memory for the tiers of a pool, with their copies."""
    return partial(InPlaceCopies if pool.fd is not None else TierSlots, pool)


class TierSlots:
    """Implements `kvtransfer.tiers.copies.TierCopies` for `pool`; page-locking takes seconds.

    A stream for each direction: blocks that leave do not wait for those that come back, which would hold up
    the step that takes their place.
    """

    is_immediate = False

    def __init__(self, pool: KVPool, num_slots: int) -> None:
        self._device = pool.device
        self.slots = KVPool(pool.layout, num_slots)
        self.num_loaded_at_once = max(1, HostBlocks.batch_bytes // pool.block_bytes)
        self._out = BlockCopies(pool.tensor, self.slots.tensor)
        self._back = BlockCopies(pool.tensor, self.slots.tensor, is_locked=True)
        self._lock = threading.Lock()
        """Guards `_back`: host memory and the disk have a reader each."""

    def store(self, blocks: Sequence[int], slots: Sequence[int]) -> Iterator[int]:
        copying = self._out.store(*_by_slot(blocks, slots), mark_steps(self._device))
        delay_steps(self._device, copying.read)
        return self._sums(slots, copying.ended)

    def load(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        blocks, slots = _by_slot(blocks, slots)
        with self._lock:
            copying = self._back.load(slots, blocks)
        copying.ended.synchronize()

    def _sums(self, slots: Sequence[int], ended: Mark) -> Iterator[int]:
        """Yield the checksums of slots, each when it is asked for, once the copies to them are over."""
        ended.synchronize()
        for slot in slots:
            yield from checksum_blocks(self.slots, (slot,))


def _by_slot(blocks: Sequence[int], slots: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return both in the order of the slots, of which each run goes over the bus in one copy.

    A sequence's last blocks leave the pool first, and are read last.
    """
    pairs = sorted(zip(slots, blocks, strict=True))
    return [block for _, block in pairs], [slot for slot, _ in pairs]
