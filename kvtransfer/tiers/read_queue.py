"""The thread that does the reads of one tier, one after the other, and how long these take now."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

import structlog

from kvtransfer.tiers.reads import TierRead

log = structlog.get_logger()

LATENCY_S = 0.002
"""From the step that asks for a read to the one that goes on, besides the read."""
ASSUMED_BYTES = 16e6
"""Until something was read, a speed is assumed, which counts as if so much had been read at it."""
FORGET_S = 30.0
"""The speed of the last read is forgotten after this time: what was slow may be fast again, and to find out
costs at most the time of computing.
"""

TakeNext = Callable[[TierRead, Sequence[bytes]], bool]
"""Copies some of the next blocks of a read, given their hashes; returns False if the read ends here."""


class ReadQueue:
    """Reads that wait for one thread. `on_end` takes reads that have gone as far as they can here."""

    def __init__(
        self,
        name: str,
        block_bytes: int,
        assumed_bytes_per_s: float,
        take_next: TakeNext,
        on_end: Callable[[TierRead], None],
    ) -> None:
        self._block_bytes = block_bytes
        self._assumed_s = ASSUMED_BYTES / assumed_bytes_per_s
        self._take_next = take_next
        self._on_end = on_end
        self._lock = threading.Lock()
        self._num_waiting = 0
        self._read_bytes, self._read_s, self._read_at = ASSUMED_BYTES, self._assumed_s, 0.0
        self._block_since: float | None = None
        """When the read of the blocks that are being read began."""
        self._queue: queue.SimpleQueue[tuple[TierRead, int] | None] = queue.SimpleQueue()
        # A daemon: a disk that hangs must not keep the process alive.
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def put(self, read: TierRead, num_blocks: int) -> None:
        """Let a read wait for its turn; so many of its blocks are expected to come from here."""
        with self._lock:
            self._num_waiting += num_blocks
        self._queue.put((read, num_blocks))

    def close(self) -> None:
        """Let the thread end behind the reads that wait."""
        self._queue.put(None)

    def speed(self) -> tuple[float, float]:
        """Return how long a read that is asked for would wait, and how long it would take for each block."""
        with self._lock:
            if time.monotonic() - self._read_at > FORGET_S:
                self._read_bytes, self._read_s = ASSUMED_BYTES, self._assumed_s
            block_s = self._block_bytes * self._read_s / self._read_bytes
            since = self._block_since
            # A disk that hangs goes on to do so.
            hung_s = 0.0 if since is None else time.monotonic() - since
            return LATENCY_S + max(hung_s, self._num_waiting * block_s), block_s

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            read, num_expected = item
            began_s, num_before = None, read.num_done
            try:
                read.wait()
                while hashes := read.next_hashes:
                    began_s = began_s or time.monotonic()  # waits before say nothing about the tier
                    if not self._take(read, hashes):
                        break
            except RuntimeError as error:  # CUDA's: the step under way fails, too, and is reported
                log.warning("kv_read_failed", queue=self.thread.name, reason=str(error))
            with self._lock:
                self._num_waiting -= num_expected
            if began_s is not None:
                self._observe(read.num_done - num_before, read, time.monotonic() - began_s)
            self._on_end(read)

    def _take(self, read: TierRead, hashes: Sequence[bytes]) -> bool:
        self._block_since = time.monotonic()
        try:
            return self._take_next(read, hashes)
        finally:
            self._block_since = None

    def _observe(self, num_read: int, read: TierRead, seconds: float) -> None:
        if not num_read and not read.is_stopped:
            return
        with self._lock:
            # Half of what was known before counts no more.
            self._read_bytes = self._read_bytes / 2 + max(num_read, 1) * self._block_bytes
            self._read_s = self._read_s / 2 + seconds
            self._read_at = time.monotonic()
