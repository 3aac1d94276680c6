"""Blocks that leave a pool in host memory are kept in other memory and in files, and come back.

    pool ──keep──▶ host memory ──writer──▶ file
     ▲ (step thread)     │       (thread)    │
     └────── reader ─────┴───── reader ──────┘
            (thread)           (thread)

The step thread copies a block to host memory and looks hashes up; it waits for neither disk nor threads. From
a pool on a device it only queues the copies, and another thread waits for them: until a block has landed, it
counts as there, readers wait for it, and it does not leave. The blocks that host memory has no room for leave
it, the least recently used first: to the disk, if there is one. Without a budget for host memory, each block
leaves at once. Where the disk is too slow, blocks are dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import structlog

from kvtransfer.pools.pool import BlockPool
from kvtransfer.tiers.arrivals import Arrivals
from kvtransfer.tiers.copies import InPlaceCopies, Mark, TierCopies
from kvtransfer.tiers.disk import Disk, DiskSettings
from kvtransfer.tiers.host_memory import HostMemory
from kvtransfer.tiers.readers import Readers
from kvtransfer.tiers.reads import TierRead
from kvtransfer.tiers.told import Count, OnChange, Told, count_nothing, tell_nobody
from scheduling.memory.prefix_reads import TierHit
from scheduling.memory.tiers import Tier

log = structlog.get_logger()

STAGING_BYTES = 64 * 1024 * 1024
"""Host memory for blocks on their way to the disk, beside the budget, unless another size is given."""


def num_staged_blocks(pool: BlockPool, staging_bytes: int) -> int:
    """Return for how many blocks on their way to the disk there is room in so much host memory."""
    return min(pool.num_blocks, max(1, staging_bytes // pool.block_bytes))


@dataclass(frozen=True, slots=True)
class TierState:
    """The number of blocks in a tier, and how long reads take now."""

    num_blocks: int
    wait_s: float
    """Until a read that is asked for would begin."""
    block_s: float
    """For each block."""


class Tiers:
    """Implements `engine.core.groups.incoming.KVTiers`. `host_bytes` are for blocks in host memory.

    `new_copies` returns so many slots of host memory, with their copies; by default, the pool is there, too.
    Blocks on their way to the disk have `staging_bytes` beside the budget.
    Raises ValueError if neither `host_bytes` nor a disk are given, or if a budget is not enough for a block.
    """

    def __init__(
        self,
        pool: BlockPool,
        host_bytes: int = 0,
        disk: DiskSettings | None = None,
        new_copies: Callable[[int], TierCopies] | None = None,
        staging_bytes: int = STAGING_BYTES,
    ) -> None:
        self._block_bytes = block_bytes = pool.block_bytes
        self._max_kept = host_bytes // block_bytes
        if not self._max_kept and (host_bytes or disk is None):
            raise ValueError(f"a block takes {block_bytes} bytes, {host_bytes} are allowed")
        num_staged = 0 if disk is None else num_staged_blocks(pool, staging_bytes)
        num_slots = self._max_kept + num_staged
        self._copies = (new_copies or partial(InPlaceCopies, pool))(num_slots + int(disk is not None))
        self._memory = HostMemory(self._copies.slots, num_slots)
        self._lock = threading.Condition()
        """Guards the memory and the disk's index, and is never held while the disk is waited for."""
        self._told = Told(Tier.HOST if self._max_kept else Tier.DISK)
        self._is_closed = False
        self._disk = None if disk is None else Disk(disk, block_bytes, self._memory, self._lock, self._told)
        self._arrivals = Arrivals(self._land)
        self._readers = Readers(
            self._memory, self._disk, self._lock, self._told, block_bytes=block_bytes, buffer=num_slots
        )

    @property
    def present(self) -> tuple[Tier, ...]:
        """Return the tiers that blocks are kept in, the fastest first."""
        host = (Tier.HOST,) if self._max_kept else ()
        return host if self._disk is None else (*host, Tier.DISK)

    def start(self, count: Count = count_nothing, on_change: OnChange = tell_nobody) -> None:
        """Start the threads; until the files of a disk were found, nothing is written to it."""
        self._told.count, self._told.on_change = count, on_change
        if not self._copies.is_immediate:
            self._arrivals.thread.start()
        self._readers.start()
        if self._disk is not None:
            self._disk.start()

    def wait_until_open(self, timeout_s: float) -> bool:
        """Return whether blocks are kept and found in all tiers; wait for it."""
        with self._lock:
            return self._lock.wait_for(lambda: self._disk is None or self._disk.is_open, timeout_s)

    def wait_until_written(self, timeout_s: float) -> bool:
        """Return whether all that left the pool and host memory is where it belongs; wait for it."""
        with self._lock:
            return self._lock.wait_for(self._is_settled, timeout_s)

    # On the step thread

    def keep(self, blocks: Sequence[int], hashes: Sequence[bytes]) -> None:
        # Readers need the lock, too, and wait for the copy of one block at most.
        size = 1 if self._copies.is_immediate else max(1, len(blocks))
        for begin in range(0, len(blocks), size):
            with self._lock:
                self._keep(blocks[begin : begin + size], hashes[begin : begin + size])

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
            wait_s, block_s = self._readers.speed(Tier.HOST)
            host_s = wait_s + num_in_host * block_s
            hits.append(TierHit(num_in_host, host_s))
        if num_behind:
            wait_s, block_s = self._readers.speed(Tier.DISK)
            hits.append(TierHit(num_in_host + num_behind, host_s + wait_s + num_behind * block_s))
        return hits

    # On any thread

    def state(self, tier: Tier) -> TierState:
        """Return what is in one of the tiers that are present, and how long reads take now."""
        wait_s, block_s = self._readers.speed(tier)
        if tier is Tier.HOST or self._disk is None:
            return TierState(self._memory.num_kept, wait_s, block_s)
        return TierState(len(self._disk.index), wait_s, block_s)

    # On other threads

    def read(
        self,
        blocks: Sequence[int],
        hashes: Sequence[bytes],
        on_end: Callable[[], None],
        behind: Mark | None = None,
    ) -> TierRead:
        """Begin to read; `on_end` is called on another thread unless the disk hangs.

        Nothing else uses the blocks once `behind` is reached.
        """
        read = TierRead(self._copies, blocks, hashes, on_end, behind)
        with self._lock:
            num_in_host = self._memory.num_leading(hashes)
            self._touch(list(reversed(hashes)))
        self._readers.put(read, num_in_host)
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
        self._arrivals.close()
        self._readers.close()
        if self._disk is None:
            return
        has_ended = self._disk.close(deadline_s)
        if self._disk.is_open:
            self._readers.join(deadline_s)
        if has_ended and self._readers.have_ended:
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

    def _keep(self, blocks: Sequence[int], hashes: Sequence[bytes]) -> None:
        """Copy blocks that are not there: the last ones, used last, if there is no room for all."""
        if self._is_closed:
            return
        wanted = [place for place, block_hash in enumerate(hashes) if self._accepts(block_hash)]
        num_dropped = len(wanted) - self._make_room(len(wanted))
        if num_dropped:
            self._told.count(self._told.in_memory, "dropped", num_dropped, 0)
        if len(wanted) > num_dropped:
            places = wanted[num_dropped:]
            self._store([blocks[place] for place in places], [hashes[place] for place in places])
        self._shed()

    def _make_room(self, most: int) -> int:
        """Return for how many of `most` blocks there is room; drop the least recently used, if need be."""
        while self._memory.num_free < most and (oldest := self._memory.oldest()) is not None:
            self._evict(oldest)
            if self._disk is not None and oldest not in self._disk.index:
                self._told.count(Tier.DISK, "dropped", 1, 0)
        return min(most, self._memory.num_free)

    def _store(self, blocks: Sequence[int], hashes: Sequence[bytes]) -> None:
        """Copy blocks of the pool, for which there is room."""
        slots = [self._memory.begin(block_hash) for block_hash in hashes]
        self._told.on_change(self._told.in_memory, hashes, ())
        if self._max_kept:
            self._told.count(Tier.HOST, "kept", len(blocks), len(blocks) * self._block_bytes)
        try:
            sums = self._copies.store(blocks, slots)
        except RuntimeError as error:  # CUDA's: where the device has failed, the next step reports it
            log.warning("kv_host_copy_failed", blocks=len(blocks), reason=str(error))
            for block_hash, slot in zip(hashes, slots, strict=True):
                self._land(block_hash, slot, None)
            return
        if not self._copies.is_immediate:
            self._arrivals.put(hashes, slots, sums)
            return
        for block_hash, slot, block_sum in zip(hashes, slots, sums, strict=True):
            self._memory.land(block_hash, slot, block_sum)

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

    def _is_settled(self) -> bool:
        return not self._memory.num_arriving and not self._memory.num_leaving

    def _wait_for(self, is_reached: Callable[[], bool], deadline_s: float) -> bool:
        """Wait, with the lock given up meanwhile; return False if the deadline has passed before."""
        return self._lock.wait_for(is_reached, deadline_s - time.monotonic())

    def _write_rest(self, disk: Disk, cached: Sequence[tuple[int, bytes]], deadline_s: float) -> None:
        """Let the blocks of the pool and of host memory leave for the disk, as many as it takes."""
        now_ns, most = disk.now_ns(), disk.index.max_blocks
        blocks: dict[bytes, int | None] = {block_hash: block for block, block_hash in cached[:most]}
        with self._lock:
            if not self._wait_for(lambda: not self._memory.num_arriving, deadline_s):
                return
            for block_hash in self._memory.newest_first():
                blocks.setdefault(block_hash, None)
        for place, (block_hash, block) in enumerate(islice(blocks.items(), most)):
            with self._lock:
                if block is not None and not self._bring(block, block_hash, disk, deadline_s):
                    return
                slot = self._memory.find(block_hash)
                if slot is None or block_hash in disk.index:
                    disk.index.touch((block_hash,))
                elif not self._memory.is_leaving(block_hash, slot):
                    disk.write(block_hash, self._memory.leave(block_hash), now_ns - place * 1000)

    def _bring(self, block: int, block_hash: bytes, disk: Disk, deadline_s: float) -> bool:
        """Let a block of the pool be in host memory or on the disk; return False if there is no time left."""
        if block_hash in self._memory or block_hash in disk.index:
            return True
        if not self._wait_for(lambda: self._memory.num_free > 0, deadline_s):
            return False
        self._store([block], [block_hash])
        return self._wait_for(partial(self._memory.has_landed, block_hash), deadline_s)

    # The thread that waits for a device

    def _land(self, block_hash: bytes, slot: int, block_sum: int | None) -> None:
        """Take in that the copy of a block to its slot is over, or has failed."""
        with self._lock:
            if block_sum is not None:
                self._memory.land(block_hash, slot, block_sum)
            else:
                if self._memory.find(block_hash) == slot:
                    self._discard(block_hash)
                self._memory.unpin(slot)
                self._told.count(self._told.in_memory, "dropped", 1, 0)
            self._shed()
            self._lock.notify_all()
