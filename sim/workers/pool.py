"""A worker's KV blocks, counted: what is promised to sequences, and which shared prefixes are cached.

Only what several requests can share has a name: a prompt's leading shared blocks, chained, so that a piece is
found again only behind the same pieces. All other blocks are counts; when their sequence has ended they stay
cached behind what was used before, and take its place in the order of eviction, as they would on an engine.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

Name = tuple[int, ...]
"""The tenant's number and the places in the pool of shared blocks, up to and with this piece."""


class Pool:
    """Blocks of one worker. Promised: to sequences that have not ended, whether filled yet or not."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_promised = 0
        self._shared: dict[Name, list[int]] = {}
        """Pieces in use: [blocks, sequences that hold it]."""
        self._num_shared = 0
        self._cached: OrderedDict[Name | int, int] = OrderedDict()
        self.num_cached = 0
        self._last_nameless = 0

    @property
    def num_available(self) -> int:
        """Neither promised nor shared by anyone; cached ones among them."""
        return self.num_blocks - self.num_promised - self._num_shared

    @property
    def is_empty(self) -> bool:
        """Nobody holds anything."""
        return self.num_promised == 0 and self._num_shared == 0

    def held(self, names: Sequence[Name]) -> int:
        """How many leading pieces are there, used or cached."""
        for count, name in enumerate(names):
            if name not in self._shared and name not in self._cached:
                return count
        return len(names)

    def can_promise(self, num_blocks: int, names: Sequence[Name], sizes: Sequence[int]) -> bool:
        """Whether that many blocks are left once the leading pieces that are there are pinned."""
        count = self.held(names)
        pinned = sum(size for name, size in zip(names[:count], sizes, strict=False) if name in self._cached)
        return num_blocks - sum(sizes[:count]) + pinned <= self.num_available

    def promise(self, num_blocks: int) -> None:
        """Set blocks aside for a sequence."""
        self.num_promised += num_blocks
        self._evict()

    def pin(self, names: Sequence[Name], sizes: Sequence[int]) -> None:
        """Hold pieces, cached or not; one that nobody had is computed by whoever pins it."""
        for name, size in zip(names, sizes, strict=True):
            used = self._shared.get(name)
            if used is not None:
                used[1] += 1
                continue
            if name in self._cached:
                self.num_cached -= self._cached.pop(name)
            self._shared[name] = [size, 1]
            self._num_shared += size
        self._evict()

    def release(self, num_blocks: int, num_filled: int, names: Sequence[Name]) -> None:
        """A sequence has ended: its filled blocks and its pieces stay cached until their place is needed."""
        assert 0 <= num_blocks <= self.num_promised, (num_blocks, self.num_promised)
        self.num_promised -= num_blocks
        for name in reversed(names):
            used = self._shared[name]
            used[1] -= 1
            if used[1] == 0:
                del self._shared[name]
                self._num_shared -= used[0]
                self._cache(name, used[0])
        if num_filled > 0:
            self._last_nameless += 1
            self._cache(self._last_nameless, min(num_filled, num_blocks))
        self._evict()

    def _cache(self, name: Name | int, size: int) -> None:
        self._cached[name] = size
        self.num_cached += size

    def _evict(self) -> None:
        while self._cached and self.num_cached > self.num_available:
            self.num_cached -= self._cached.popitem(last=False)[1]
