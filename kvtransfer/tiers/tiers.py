"""Blocks that leave a pool in host memory are kept in other memory and in files, and come back.

    pool ──keep──▶ host memory ──writer──▶ file
     ▲ (step thread)     │       (thread)    │
     └────── reader ─────┴───── reader ──────┘
            (thread)           (thread)

The step thread copies a block to host memory and looks hashes up; it waits for neither disk nor threads. The
blocks that host memory has no room for leave it, the least recently used first: to the disk, if there is one.
Without a budget for host memory, each block leaves at once. Where the disk is too slow, blocks are dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import structlog

from kvtransfer.pools.pool import BlockPool
from kvtransfer.tiers.disk import Disk, DiskSettings
from kvtransfer.tiers.host_memory import HostMemory
from kvtransfer.tiers.read_queue import ReadQueue
from kvtransfer.tiers.reads import TierRead
from kvtransfer.tiers.told import Count, OnChange, Told, count_nothing, tell_nobody
from scheduling.memory.prefix_reads import TierHit
from scheduling.memory.tiers import Tier

log = structlog.get_logger()

STAGING_BYTES = 64 * 1024 * 1024
"""Host memory for blocks on their way to the disk, beside the budget."""
# Assumed until something was read, and again when nothing was read for some time.
_HOST_BYTES_PER_S = 4e9
_DISK_BYTES_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class TierState:
    """The number of blocks in a tier, and how long reads take now."""

    num_blocks: int
    wait_s: float
    """Until a read that is asked for would begin."""
    block_s: float
    """For each block."""


class Tiers:
    """Implements `engine.core.memory.prefix_reads.KVTiers`. `host_bytes` are for blocks in host memory.

    Raises ValueError if neither these nor a disk are given, or if a budget is not enough for a block.
    """

    def __init__(self, pool: BlockPool, host_bytes: int = 0, disk: DiskSettings | None = None) -> None:
        block_bytes = pool.block_bytes
        self._pool = pool
        self._max_kept = host_bytes // block_bytes
        if not self._max_kept and (host_bytes or disk is None):
            raise ValueError(f"a block takes {block_bytes} bytes, {host_bytes} are allowed")
        num_staged = 0 if disk is None else min(pool.num_blocks, max(1, STAGING_BYTES // block_bytes))
        self._memory = HostMemory(self._max_kept + num_staged, block_bytes)
        self._lock = threading.Condition()
        """Guards the memory and the disk's index, and is never held while the disk is waited for."""
        self._told = Told(Tier.HOST if self._max_kept else Tier.DISK)
        self._is_closed = False
        self._disk = None if disk is None else Disk(disk, block_bytes, self._memory, self._lock, self._told)
        self._host_reads = ReadQueue(
            "kv-host-read", block_bytes, _HOST_BYTES_PER_S, self._take_from_host, self._end_host_read
        )
        self._buffer = memoryview(bytearray(block_bytes))
        """The block that the disk's reader has read last."""
        self._disk_reads = ReadQueue(
            "kv-disk-read", block_bytes, _DISK_BYTES_PER_S, self._take_from_any, _end_read
        )

    @property
    def present(self) -> tuple[Tier, ...]:
        """Return the tiers that blocks are kept in, the fastest first."""
        host = (Tier.HOST,) if self._max_kept else ()
        return host if self._disk is None else (*host, Tier.DISK)

    def start(self, count: Count = count_nothing, on_change: OnChange = tell_nobody) -> None:
        """Start the threads; until the files of a disk were found, nothing is written to it."""
        self._told.count, self._told.on_change = count, on_change
        self._host_reads.thread.start()
        if self._disk is not None:
            self._disk_reads.thread.start()
            self._disk.start()

    def wait_until_open(self, timeout_s: float) -> bool:
        """Return whether blocks are kept and found in all tiers; wait for it."""
        with self._lock:
            return self._lock.wait_for(lambda: self._disk is None or self._disk.is_open, timeout_s)

    def wait_until_written(self, timeout_s: float) -> bool:
        """Return whether all that left host memory is on the disk; wait for it."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._memory.num_leaving, timeout_s)

    # On the step thread

    def keep(self, block: int, block_hash: bytes) -> None:
        with self._lock:
            if not self._is_closed and self._accepts(block_hash) and self._make_room():
                self._put(block, block_hash)
                self._shed()

    def forget(self, block_hash: bytes) -> None:
        with self._lock:
            self._discard(block_hash)
            if self._disk is not None:
                self._disk.forget(block_hash)

    def readable(self, hashes: Sequence[bytes]) -> list[TierHit]:
        with self._lock:
            num_in_host = self._memory.num_leading(hashes)
            num_behind = self._num_leading(hashes[num_in_host:])
        hits, host_s = [], 0.0
        if num_in_host:
            wait_s, block_s = self._host_reads.speed()
            host_s = wait_s + num_in_host * block_s
            hits.append(TierHit(num_in_host, host_s))
        if num_behind:
            wait_s, block_s = self._disk_reads.speed()
            hits.append(TierHit(num_in_host + num_behind, host_s + wait_s + num_behind * block_s))
        return hits

    # On any thread

    def state(self, tier: Tier) -> TierState:
        """Return what is in one of the tiers that are present, and how long reads take now."""
        wait_s, block_s = (self._host_reads if tier is Tier.HOST else self._disk_reads).speed()
        if tier is Tier.HOST or self._disk is None:
            return TierState(self._memory.num_kept, wait_s, block_s)
        return TierState(len(self._disk.index), wait_s, block_s)

    # On other threads

    def read(self, blocks: Sequence[int], hashes: Sequence[bytes], on_end: Callable[[], None]) -> TierRead:
        """Begin to read; `on_end` is called on another thread unless the disk hangs."""
        read = TierRead(self._pool, blocks, hashes, on_end)
        with self._lock:
            num_in_host = self._memory.num_leading(hashes)
            self._touch(list(reversed(hashes)))
        if num_in_host or self._disk is None:
            self._host_reads.put(read, num_in_host)
        else:
            self._disk_reads.put(read, len(hashes))
        return read

    def close(self, cached: Sequence[tuple[int, bytes]], timeout_s: float) -> None:
        """Write `cached` blocks and those in host memory to the disk, if there is one, as far as time allows.

        Those of the pool go first, the most recently used before others. No step runs any more. A disk that
        hangs is not waited for.
        """
        deadline_s = time.monotonic() + timeout_s
        if self._disk is not None and self._disk.is_open:
            self._write_rest(self._disk, cached, deadline_s)
            self.wait_until_written(deadline_s - time.monotonic())
        with self._lock:
            num_left, self._is_closed = self._memory.num_leaving, True
        self._host_reads.close()
        if self._disk is None:
            return
        self._disk_reads.close()
        has_ended = self._disk.close(deadline_s)
        for queue in (self._host_reads, self._disk_reads) if self._disk.is_open else ():
            queue.thread.join(max(0.0, deadline_s - time.monotonic()))
        if has_ended and not self._host_reads.thread.is_alive() and not self._disk_reads.thread.is_alive():
            self._disk.release()
        log.info("kv_disk_closed", blocks=len(self._disk.index), unwritten=num_left)

    # With the lock

    def _accepts(self, block_hash: bytes) -> bool:
        """Note that a block was used; return True if it is to be copied."""
        self._touch((block_hash,))
        if block_hash in self._memory:
            return False
        if self._max_kept:
            return True
        return self._disk is not None and self._disk.is_open and block_hash not in self._disk.index

    def _make_room(self) -> bool:
        """Return whether there is room for one more block; drop the least recently used one, if need be."""
        if not self._memory.has_room and (oldest := self._memory.oldest()) is not None:
            self._evict(oldest)
            if self._disk is not None and oldest not in self._disk.index:
                self._told.count(Tier.DISK, "dropped", 1, 0)
        if not self._memory.has_room:
            self._told.count(self._told.in_memory, "dropped", 1, 0)
        return self._memory.has_room

    def _put(self, block: int, block_hash: bytes) -> None:
        self._memory.put(block_hash, self._pool.block_bytes_view(block))
        self._told.on_change(self._told.in_memory, (block_hash,), ())
        if self._max_kept:
            self._told.count(Tier.HOST, "kept", 1, self._pool.block_bytes)

    def _shed(self) -> None:
        """Let blocks leave that are beyond the budget, to the disk if it takes them."""
        while self._memory.num_kept > self._max_kept and (oldest := self._memory.oldest()) is not None:
            disk = self._disk
            if disk is None or not disk.is_open or oldest in disk.index:
                self._evict(oldest)
            else:
                disk.write(oldest, self._memory.leave(oldest))
                self._count_evicted()

    def _evict(self, block_hash: bytes) -> None:
        self._discard(block_hash)
        self._count_evicted()

    def _count_evicted(self) -> None:
        if self._max_kept:
            self._told.count(Tier.HOST, "evicted", 1, 0)

    def _discard(self, block_hash: bytes) -> None:
        if self._memory.discard(block_hash):
            self._told.on_change(self._told.in_memory, (), (block_hash,))

    def _touch(self, hashes: Sequence[bytes]) -> None:
        self._memory.touch(hashes)
        if self._disk is not None:
            self._disk.index.touch(hashes)

    def _num_leading(self, hashes: Sequence[bytes]) -> int:
        """Return how many of `hashes`, from the first on, are in any tier."""
        for place, block_hash in enumerate(hashes):
            if block_hash not in self._memory and (self._disk is None or block_hash not in self._disk.index):
                return place
        return len(hashes)

    def _write_rest(self, disk: Disk, cached: Sequence[tuple[int, bytes]], deadline_s: float) -> None:
        """Let the blocks of the pool and of host memory leave for the disk, as many as it takes."""
        now_ns, most = disk.now_ns(), disk.index.max_blocks
        blocks: dict[bytes, int | None] = {block_hash: block for block, block_hash in cached[:most]}
        with self._lock:
            for block_hash in self._memory.newest_first():
                blocks.setdefault(block_hash, None)
        for place, (block_hash, block) in enumerate(islice(blocks.items(), most)):
            with self._lock:
                if block_hash not in self._memory and block is not None and block_hash not in disk.index:
                    if not self._lock.wait_for(lambda: self._memory.has_room, deadline_s - time.monotonic()):
                        return
                    self._put(block, block_hash)
                slot = self._memory.find(block_hash)
                if slot is None or block_hash in disk.index:
                    disk.index.touch((block_hash,))
                elif not self._memory.is_leaving(block_hash, slot):
                    disk.write(block_hash, self._memory.leave(block_hash), now_ns - place * 1000)

    # The readers

    def _take_from_host(self, read: TierRead, block_hash: bytes) -> bool:
        """Copy the next block of a read, if it is in host memory and verifies."""
        with self._lock:
            slot = self._memory.find(block_hash)
            if slot is None:
                return False
            self._memory.pin(slot)
        is_intact = self._memory.is_intact(slot)
        is_put = is_intact and read.put(self._memory.data(slot))
        with self._lock:
            self._memory.unpin(slot)
            if not is_intact and self._memory.find(block_hash) == slot:
                self._discard(block_hash)
        if is_put:
            self._told.count(self._told.in_memory, "read", 1, self._pool.block_bytes)
        elif not is_intact:
            self._told.count(self._told.in_memory, "refused", 1, 0)
            log.warning("kv_host_block_refused", hash=block_hash.hex())
        return is_put

    def _take_from_any(self, read: TierRead, block_hash: bytes) -> bool:
        if self._take_from_host(read, block_hash):
            return True
        if self._disk is None or read.is_stopped or not self._disk.read(block_hash, self._buffer):
            return False
        is_put = read.put(self._buffer)
        if is_put:
            self._told.count(Tier.DISK, "read", 1, self._pool.block_bytes)
        return is_put

    def _end_host_read(self, read: TierRead) -> None:
        """Let the disk's reader go on with what is not in host memory."""
        if self._disk is not None and read.next_hash is not None:
            self._disk_reads.put(read, read.num_left)
        else:
            _end_read(read)


def _end_read(read: TierRead) -> None:
    if not read.is_stopped:
        read.on_end()
