"""The blocks that are in host memory, each with the checksum that it had in the pool.

    free ──begin──▶ arriving ──land──▶ kept ──leave──▶ leaving ──discard──▶ free
                       └────discard─────┴──────discard──────────────────────▲

The copy of a block that is arriving is under way; where the pool is in host memory, it lands at once. A block
that is leaving is being written to the disk. It can be read until it is there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from kvtransfer.pools.host_blocks import checksum
from kvtransfer.pools.pool import BlockPool


class HostMemory:
    """The blocks in the first `num_slots` of `slots`.

    Each call costs O(1) for a block. It has no lock: that of the tiers guards it. A slot that is pinned keeps
    its content, even if its block is discarded, until it is unpinned. That of an arriving block is pinned.
    """

    def __init__(self, slots: BlockPool, num_slots: int) -> None:
        self._slots = slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._arriving: dict[bytes, int] = {}
        self._kept: OrderedDict[bytes, int] = OrderedDict()
        """The slot of each block, the least recently used first."""
        self._leaving: dict[bytes, int] = {}
        self._sums = [0] * num_slots
        self._num_pins = [0] * num_slots
        self._discarded: set[int] = set()
        """Pinned slots whose blocks were discarded."""

    def __contains__(self, block_hash: bytes) -> bool:
        return self.find(block_hash) is not None

    @property
    def num_kept(self) -> int:
        """Return how many blocks are here to stay: those that are kept or arriving."""
        return len(self._kept) + len(self._arriving)

    @property
    def num_arriving(self) -> int:
        return len(self._arriving)

    @property
    def num_leaving(self) -> int:
        return len(self._leaving)

    @property
    def num_free(self) -> int:
        """Return how many more blocks there is room for."""
        return len(self._free)

    def find(self, block_hash: bytes) -> int | None:
        """Return the slot of a block that is here."""
        for place in (self._kept, self._arriving, self._leaving):
            if (slot := place.get(block_hash)) is not None:
                return slot
        return None

    def has_landed(self, block_hash: bytes) -> bool:
        """Return True if the block can be read, or is not here."""
        return block_hash not in self._arriving

    def num_leading(self, hashes: Sequence[bytes]) -> int:
        """Return how many of `hashes`, from the first on, are here."""
        for index, block_hash in enumerate(hashes):
            if block_hash not in self:
                return index
        return len(hashes)

    def newest_first(self) -> list[bytes]:
        """Return the blocks that are kept, the most recently used first."""
        return list(reversed(self._kept))

    def touch(self, hashes: Iterable[bytes]) -> None:
        """Note that blocks were used; those that are not kept are ignored."""
        for block_hash in hashes:
            if block_hash in self._kept:
                self._kept.move_to_end(block_hash)

    def begin(self, block_hash: bytes) -> int:
        """Return the slot for a block that is not here, to be copied to; there is room."""
        assert block_hash not in self
        slot = self._arriving[block_hash] = self._free.pop()
        self.pin(slot)
        return slot

    def land(self, block_hash: bytes, slot: int, block_sum: int) -> None:
        """The copy of a block is over: keep it, unless it was discarded, with its checksum in the pool."""
        self._sums[slot] = block_sum
        if self._arriving.get(block_hash) == slot:
            self._kept[block_hash] = self._arriving.pop(block_hash)
        self.unpin(slot)

    def oldest(self) -> bytes | None:
        """Return the least recently used block that is kept and not pinned, if there is one.

        Few are pinned, and these were used just now.
        """
        return next((kept for kept, slot in self._kept.items() if not self._num_pins[slot]), None)

    def leave(self, block_hash: bytes) -> int:
        """Let a block that is kept leave; return its slot."""
        slot = self._leaving[block_hash] = self._kept.pop(block_hash)
        return slot

    def is_leaving(self, block_hash: bytes, slot: int) -> bool:
        """Return True if the block is leaving from this slot, and was not discarded meanwhile."""
        return self._leaving.get(block_hash) == slot

    def discard(self, block_hash: bytes) -> bool:
        """Take a block out; return False if it is not here."""
        slot = self.find(block_hash)
        if slot is None:
            return False
        for place in (self._kept, self._arriving, self._leaving):
            place.pop(block_hash, None)
        if self._num_pins[slot]:
            self._discarded.add(slot)
        else:
            self._free.append(slot)
        return True

    def pin(self, slot: int) -> None:
        self._num_pins[slot] += 1

    def unpin(self, slot: int) -> None:
        """Undo a `pin`; the slot is free if its block was discarded meanwhile."""
        self._num_pins[slot] -= 1
        if not self._num_pins[slot] and slot in self._discarded:
            self._discarded.remove(slot)
            self._free.append(slot)

    # Of a pinned slot, without the lock

    def data(self, slot: int) -> memoryview:
        return self._slots.block_bytes_view(slot)

    def sum_of(self, slot: int) -> int:
        """Return the checksum that the block had in the pool."""
        return self._sums[slot]

    def is_intact(self, slot: int) -> bool:
        """Return True if the content has the checksum that it had in the pool."""
        return checksum(self.data(slot)) == self._sums[slot]
