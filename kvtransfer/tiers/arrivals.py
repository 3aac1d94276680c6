"""The thread that waits for copies to host memory that a device makes beside the steps."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Sequence

import structlog

log = structlog.get_logger()

Land = Callable[[bytes, int, int | None], None]
"""Takes the hash of a block that has arrived, its slot and its checksum; None if the copy has failed."""


class Arrivals:
    """Calls `land` for each block that was put here, in order, once its copy is over."""

    def __init__(self, land: Land) -> None:
        self._land = land
        self._queue: queue.SimpleQueue[tuple[Sequence[bytes], Sequence[int], Iterable[int]] | None]
        self._queue = queue.SimpleQueue()
        # A daemon: a device that hangs must not keep the process alive.
        self.thread = threading.Thread(target=self._run, name="kv-host-arrive", daemon=True)

    def put(self, hashes: Sequence[bytes], slots: Sequence[int], sums: Iterable[int]) -> None:
        """Wait for copies to slots by iterating over their checksums."""
        self._queue.put((hashes, slots, sums))

    def close(self) -> None:
        """Let the thread end behind the copies that are under way."""
        self._queue.put(None)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            hashes, slots, sums = item
            num_landed = 0
            try:
                for place, block_sum in enumerate(sums):
                    self._land(hashes[place], slots[place], block_sum)
                    num_landed += 1
            except RuntimeError as error:  # CUDA's: the step under way fails, too, and is reported
                log.warning("kv_host_copy_failed", blocks=len(hashes) - num_landed, reason=str(error))
            for place in range(num_landed, len(hashes)):
                self._land(hashes[place], slots[place], None)
