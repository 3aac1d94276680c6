"""A read from the tiers into blocks of the pool, which can be stopped at any time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from kvtransfer.pools.pool import BlockPool


class TierRead:
    """Blocks to be read, and how far the read has come.

    A disk may hang, so blocks are read into other memory and then copied: who stops the read waits for the
    copy of one block at most, and nothing is written to the pool afterwards.
    """

    def __init__(
        self, pool: BlockPool, blocks: Sequence[int], hashes: Sequence[bytes], on_end: Callable[[], None]
    ) -> None:
        assert len(blocks) == len(hashes)
        self.on_end = on_end
        """Called on the reading thread when the read has gone as far as it can, unless it was stopped."""
        self._pool = pool
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
    def next_hash(self) -> bytes | None:
        """Return the hash of the next block; None if all have come, or the read was stopped."""
        return None if self._is_stopped or not self.num_left else self._hashes[self._num_done]

    @property
    def num_left(self) -> int:
        """Return how many blocks have not come."""
        return len(self._hashes) - self._num_done

    def put(self, data: memoryview) -> bool:
        """Copy the next block, which is verified, to its place. Return False if the read was stopped."""
        with self._lock:
            if self._is_stopped:
                return False
            self._pool.block_bytes_view(self._blocks[self._num_done])[:] = data
            self._num_done += 1
            return True

    def stop(self) -> int:
        """Return how many blocks, from the first on, are in their places. No more will be written."""
        with self._lock:
            self._is_stopped = True
            return self._num_done
