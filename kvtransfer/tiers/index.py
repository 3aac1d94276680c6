"""The blocks that are on a disk, the least recently used first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class DiskIndex:
    """At most `max_blocks` hashes; costs O(1) for each."""

    def __init__(self, max_blocks: int) -> None:
        self.max_blocks = max_blocks
        self._hashes: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._hashes)

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._hashes

    def num_leading(self, hashes: Sequence[bytes]) -> int:
        """Return how many of `hashes`, from the first on, are here."""
        for index, block_hash in enumerate(hashes):
            if block_hash not in self._hashes:
                return index
        return len(hashes)

    def make_room(self) -> list[bytes]:
        """Forget the least recently used ones until there is room for one more; return them."""
        removed = []
        while len(self._hashes) >= self.max_blocks:
            removed.append(self._hashes.popitem(last=False)[0])
        return removed

    def add(self, block_hash: bytes) -> None:
        """Add a block that was just used; there is room."""
        self._hashes[block_hash] = None
        self._hashes.move_to_end(block_hash)
        assert len(self._hashes) <= self.max_blocks

    def touch(self, hashes: Iterable[bytes]) -> None:
        """Note that blocks were used; those that are not here are ignored."""
        for block_hash in hashes:
            if block_hash in self._hashes:
                self._hashes.move_to_end(block_hash)

    def discard(self, block_hash: bytes) -> None:
        self._hashes.pop(block_hash, None)
