"""A read from the tiers into blocks of the pool, which can be stopped at any time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from kvtransfer.tiers.copies import Mark, TierCopies


class TierRead:
    """Blocks to be read, and how far the read has come.

    A disk may hang, so blocks are read into other memory and then copied: who stops the read waits for one
    copy at most, and nothing is written to the pool afterwards. Once `behind` is reached, nothing else uses
    the blocks.
    """

    def __init__(
        self,
        copies: TierCopies,
        blocks: Sequence[int],
        hashes: Sequence[bytes],
        on_end: Callable[[], None],
        behind: Mark | None = None,
    ) -> None:
        assert len(blocks) == len(hashes)
        self.on_end = on_end
        """Called on the reading thread when the read has gone as far as it can, unless it was stopped."""
        self._copies = copies
        self._behind = behind
        self._blocks = blocks
        self._hashes = hashes
        self._lock = threading.Lock()
        self._num_done = 0
        self._is_stopped = False

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped

    @property
    def num_done(self) -> int:
        """Return how many blocks, from the first on, are in their places."""
        return self._num_done

    @property
    def next_hashes(self) -> Sequence[bytes]:
        """Return the hashes of the blocks to copy next; none if all have come, or the read was stopped."""
        most = 0 if self._is_stopped else self._copies.num_loaded_at_once
        return self._hashes[self._num_done : self._num_done + most]

    @property
    def num_left(self) -> int:
        """Return how many blocks have not come."""
        return len(self._hashes) - self._num_done

    def wait(self) -> None:
        """Wait until nothing else uses the blocks. Nobody who stops the read waits for that."""
        if self._behind is not None:
            self._behind.synchronize()

    def put(self, slots: Sequence[int]) -> bool:
        """Copy the next blocks, which are verified, to their places. Return False if the read was stopped."""
        with self._lock:
            if self._is_stopped:
                return False
            end = self._num_done + len(slots)
            self._copies.load(slots, self._blocks[self._num_done : end])
            self._num_done = end
            return True

    def stop(self) -> int:
        """Return how many blocks, from the first on, are in their places. No more will be written."""
        with self._lock:
            self._is_stopped = True
            return self._num_done
