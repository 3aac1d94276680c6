"""The two threads that read: one host memory, and one the disk behind it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from threading import Condition

import structlog

from kvtransfer.tiers.disk import Disk
from kvtransfer.tiers.host_memory import HostMemory
from kvtransfer.tiers.read_queue import ReadQueue
from kvtransfer.tiers.reads import TierRead
from kvtransfer.tiers.told import Told
from scheduling.memory.tiers import Tier

log = structlog.get_logger()

# Assumed until something was read, and again when nothing was read for some time.
_HOST_BYTES_PER_S = 4e9
_DISK_BYTES_PER_S = 1e9


class Readers:
    """A read begins with the blocks in host memory, and goes on with those on the disk, if there is one.

    `lock` guards the memory. `buffer` is a slot behind those of the memory, for the block that the disk's
    reader has read last.
    """

    def __init__(
        self,
        memory: HostMemory,
        disk: Disk | None,
        lock: Condition,
        told: Told,
        *,
        block_bytes: int,
        buffer: int,
    ) -> None:
        self._memory, self._disk, self._lock, self._told = memory, disk, lock, told
        self._block_bytes = block_bytes
        self._buffer = buffer
        self._host_reads = ReadQueue(
            "kv-host-read", block_bytes, _HOST_BYTES_PER_S, self._take_from_host, self._end_host_read
        )
        self._disk_reads = ReadQueue(
            "kv-disk-read", block_bytes, _DISK_BYTES_PER_S, self._take_from_any, _end_read
        )

    @property
    def have_ended(self) -> bool:
        return not self._host_reads.thread.is_alive() and not self._disk_reads.thread.is_alive()

    def start(self) -> None:
        self._host_reads.thread.start()
        if self._disk is not None:
            self._disk_reads.thread.start()

    def close(self) -> None:
        """Let the threads end behind the reads that wait."""
        self._host_reads.close()
        self._disk_reads.close()

    def join(self, deadline_s: float) -> None:
        """Wait for the threads to end, until `deadline_s` at most, a monotonic time."""
        for queue in (self._host_reads, self._disk_reads):
            queue.thread.join(max(0.0, deadline_s - time.monotonic()))

    def speed(self, tier: Tier) -> tuple[float, float]:
        """Return how long a read from a tier would wait, and how long it would take for each block."""
        return (self._host_reads if tier is Tier.HOST else self._disk_reads).speed()

    def put(self, read: TierRead, num_in_host: int) -> None:
        """Let a read wait for its turn; so many of its leading blocks are in host memory."""
        if num_in_host or self._disk is None:
            self._host_reads.put(read, num_in_host)
        else:
            self._disk_reads.put(read, read.num_left)

    # On the threads

    def _take_from_host(self, read: TierRead, hashes: Sequence[bytes]) -> bool:
        """Copy the next blocks of a read, up to the first that is not in host memory or does not verify."""
        slots = self._pin(hashes)
        num_intact = next((i for i, slot in enumerate(slots) if not self._memory.is_intact(slot)), len(slots))
        try:
            is_put = num_intact > 0 and read.put(slots[:num_intact])
        finally:
            self._unpin(slots, hashes[num_intact] if num_intact < len(slots) else None)
        if is_put:
            self._told.count(self._told.in_memory, "read", num_intact, num_intact * self._block_bytes)
        return is_put

    def _pin(self, hashes: Sequence[bytes]) -> list[int]:
        """Pin the slots of the leading blocks that are in host memory; wait for those that arrive."""
        slots: list[int] = []
        with self._lock:
            for block_hash in hashes:
                self._lock.wait_for(partial(self._memory.has_landed, block_hash))
                slot = self._memory.find(block_hash)
                if slot is None:
                    break
                self._memory.pin(slot)
                slots.append(slot)
        return slots

    def _unpin(self, slots: Sequence[int], damaged: bytes | None) -> None:
        """Unpin slots, the first of whose blocks that did not verify is `damaged`: it is not found again."""
        with self._lock:
            for slot in slots:
                self._memory.unpin(slot)
            if damaged is not None and self._memory.find(damaged) in slots:
                self._memory.discard(damaged)
                self._told.on_change(self._told.in_memory, (), (damaged,))
        if damaged is not None:
            self._told.count(self._told.in_memory, "refused", 1, 0)
            log.warning("kv_host_block_refused", hash=damaged.hex())

    def _take_from_any(self, read: TierRead, hashes: Sequence[bytes]) -> bool:
        if self._take_from_host(read, hashes):
            return True
        if self._disk is None or read.is_stopped:
            return False
        if not self._disk.read(hashes[0], self._memory.data(self._buffer)):
            return False
        is_put = read.put([self._buffer])
        if is_put:
            self._told.count(Tier.DISK, "read", 1, self._block_bytes)
        return is_put

    def _end_host_read(self, read: TierRead) -> None:
        """Let the disk's reader go on with what is not in host memory."""
        if self._disk is not None and read.next_hashes:
            self._disk_reads.put(read, read.num_left)
        else:
            _end_read(read)


def _end_read(read: TierRead) -> None:
    if not read.is_stopped:
        read.on_end()
