"""Blocks that leave a pool in host memory go to files, and come back: the threads that write and read.

    pool ── keep ──▶ staging ── writer ──▶ file ── reader ──▶ pool
            (step thread)        (thread)           (thread, `DiskRead`)

The step thread copies a block to the staging memory and looks hashes up; it waits for neither disk nor
threads. Where the staging memory is full, blocks are dropped. The writer first waits until no other process
uses the folder, as an earlier process of the same worker may still be ending, and then finds its files.
"""

from __future__ import annotations

import fcntl
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from kvtransfer.disk.block_files import BlockFiles, BlockRefusedError
from kvtransfer.disk.index import DiskIndex
from kvtransfer.disk.reads import DiskRead
from kvtransfer.pools.pool import BlockPool

log = structlog.get_logger()

STAGING_BYTES = 64 * 1024 * 1024
QUIET_S = 60.0
"""A disk that fails is logged once in this time."""
LATENCY_S = 0.002
"""From the step that asks for a read to the one that goes on, besides the read."""
# Assumed until something was read, and again when nothing was read for some time.
_ASSUMED_BYTES_PER_S = 1e9
_ASSUMED_BYTES = 16e6
FORGET_S = 30.0
"""The speed of the last read is forgotten after this time: what was slow may be fast again, and to find out
costs at most the time of computing.
"""

AT_ONCE = 1000
"""Blocks that an earlier process left are entered so many at a time: others wait for a millisecond."""

Count = Callable[[str, int, int], None]
"""Takes what happened to blocks, how many, and their bytes."""
OnChange = Callable[[Sequence[bytes], Sequence[bytes]], None]
"""Takes hashes of blocks that have come to the disk, and of those that are gone; called on any thread."""


@dataclass(frozen=True, slots=True)
class DiskState:
    """The number of blocks on a disk, and how long reads take now."""

    num_blocks: int
    wait_s: float
    """Until a read that is asked for would begin."""
    block_s: float
    """For each block."""


class Folder:
    """A folder that one process at a time uses."""

    def __init__(self, path: Path) -> None:
        """Make the folder, for this user only, if it is missing. Raises OSError."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = path
        self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def acquire(self) -> None:
        """Wait until no other process has the folder."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning("kv_disk_waits", folder=str(self.path), reason="another process uses the folder")
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def now_ns(self) -> int:
        """Return the time by which the files here are dated."""
        os.utime(self._lock)
        return os.fstat(self._lock).st_mtime_ns

    def release(self) -> None:
        os.close(self._lock)


class DiskTier:
    """Implements `engine.core.memory.prefix_reads.KVDisk`. `budget_bytes` are for files.

    Raises ValueError if the budget is not enough for a block.
    """

    def __init__(self, folder: Folder, budget_bytes: int, pool: BlockPool, identity: str) -> None:
        self._folder = folder
        self._pool = pool
        self._files = BlockFiles(folder.path, identity, pool.block_bytes)
        max_blocks = budget_bytes // self._files.file_bytes
        if max_blocks < 1:
            raise ValueError(
                f"a block takes {self._files.file_bytes} bytes on the disk, {budget_bytes} are allowed"
            )
        self._index = DiskIndex(max_blocks)
        self._lock = threading.Condition()
        """Guards the index and all below, and is never held while the disk is waited for."""
        num_slots = min(pool.num_blocks, max(1, STAGING_BYTES // pool.block_bytes))
        self._staging = memoryview(bytearray(num_slots * pool.block_bytes))
        self._free = list(range(num_slots))
        self._staged: dict[bytes, int] = {}
        self._num_to_read = 0
        self._is_open = False
        self._read_bytes, self._read_s, self._read_at = (
            _ASSUMED_BYTES,
            _ASSUMED_BYTES / _ASSUMED_BYTES_PER_S,
            0.0,
        )
        self._block_since: float | None = None
        """When the read of the block that is being read began."""
        self._quiet_until = 0.0
        self._dated_ns = 0
        """The time by which files are dated, when the monotonic clock was 0."""
        self._count: Count = _ignore
        self._on_change: OnChange = _ignore_change
        """Called with the lock held, so that changes are told in order."""
        self._writes: queue.SimpleQueue[tuple[bytes, int | None, int | None] | None] = queue.SimpleQueue()
        self._reads: queue.SimpleQueue[DiskRead | None] = queue.SimpleQueue()
        # Daemons: a disk that hangs must not keep the process alive.
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for target, name in ((self._write_all, "kv-disk-write"), (self._read_all, "kv-disk-read"))
        ]

    def start(self, count: Count | None = None, on_change: OnChange | None = None) -> None:
        """Start the threads; until the files were found, nothing is kept."""
        self._count, self._on_change = count or _ignore, on_change or _ignore_change
        for thread in self._threads:
            thread.start()

    def wait_until_open(self, timeout_s: float) -> bool:
        """Return whether blocks are kept and found; wait for it."""
        with self._lock:
            return self._lock.wait_for(lambda: self._is_open, timeout_s)

    def wait_until_written(self, timeout_s: float) -> bool:
        """Return whether all that was kept is written; wait for it."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._staged, timeout_s)

    # On the step thread

    def keep(self, block: int, block_hash: bytes) -> None:
        self._keep(block, block_hash, None)

    def forget(self, block_hash: bytes) -> None:
        with self._lock:
            self._index.discard(block_hash)
            self._on_change((), (block_hash,))
            self._staged.pop(block_hash, None)
        self._writes.put((block_hash, None, None))

    def num_leading(self, hashes: Sequence[bytes]) -> int:
        with self._lock:
            return self._index.num_leading(hashes)

    def read_s(self, num_blocks: int) -> float:
        state = self.state()
        return state.wait_s + num_blocks * state.block_s

    # On any thread

    def state(self) -> DiskState:
        """Return what is on the disk, and how long reads take now."""
        with self._lock:
            if time.monotonic() - self._read_at > FORGET_S:
                self._read_bytes, self._read_s = _ASSUMED_BYTES, _ASSUMED_BYTES / _ASSUMED_BYTES_PER_S
            block_s = self._pool.block_bytes * self._read_s / self._read_bytes
            since = self._block_since
            # A disk that hangs goes on to do so.
            hung_s = 0.0 if since is None else time.monotonic() - since
            wait_s = LATENCY_S + max(hung_s, self._num_to_read * block_s)
            return DiskState(len(self._index), wait_s, block_s)

    # On other threads

    def read(self, blocks: Sequence[int], hashes: Sequence[bytes], on_end: Callable[[], None]) -> DiskRead:
        """Begin to read; `on_end` is called on another thread unless the disk hangs."""
        read = DiskRead(self._pool, blocks, hashes, on_end)
        with self._lock:
            self._num_to_read += len(hashes)
            self._index.touch(reversed(hashes))
        self._reads.put(read)
        return read

    def close(self, cached: Sequence[tuple[int, bytes]], timeout_s: float) -> None:
        """Write `cached` blocks, the most recently used first, as far as time allows.

        No step runs any more. A disk that hangs is not waited for.
        """
        deadline = time.monotonic() + timeout_s
        with self._lock:
            is_open = self._is_open
        if is_open:
            now_ns = self._dated_ns + time.monotonic_ns()
            for place, (block, block_hash) in enumerate(cached[: self._index.max_blocks]):
                with self._lock:
                    if not self._lock.wait_for(lambda: self._free, deadline - time.monotonic()):
                        break
                self._keep(block, block_hash, now_ns - place * 1000)
            self.wait_until_written(deadline - time.monotonic())
        with self._lock:
            num_left, self._is_open = len(self._staged), False
        self._writes.put(None)
        self._reads.put(None)
        for thread in self._threads if is_open else ():
            thread.join(max(0.0, deadline - time.monotonic()))
        if not any(thread.is_alive() for thread in self._threads):
            self._folder.release()
        log.info("kv_disk_closed", blocks=len(self._index), unwritten=num_left)

    def _keep(self, block: int, block_hash: bytes, used_ns: int | None) -> None:
        with self._lock:
            if not self._is_open or block_hash in self._staged:
                return
            if block_hash in self._index:
                self._index.touch((block_hash,))
                return
            slot = self._free.pop() if self._free else None
            if slot is not None:
                self._staged[block_hash] = slot
        if slot is None:
            self._count("dropped", 1, 0)
            return
        self._slot(slot)[:] = self._pool.block_bytes_view(block)
        self._writes.put((block_hash, slot, used_ns))

    def _slot(self, slot: int) -> memoryview:
        size = self._pool.block_bytes
        return self._staging[slot * size : (slot + 1) * size]

    # The writer

    def _write_all(self) -> None:
        try:
            self._open()
        except OSError as error:
            self._fail("open", error)
            return
        while (item := self._writes.get()) is not None:
            block_hash, slot, used_ns = item
            if slot is None:
                self._delete([block_hash])
            else:
                self._write(block_hash, slot, used_ns)

    def _open(self) -> None:
        self._folder.acquire()
        hashes, num_refused = self._files.scan()
        surplus = hashes[: max(0, len(hashes) - self._index.max_blocks)]
        self._delete(surplus)
        self._dated_ns = self._folder.now_ns() - time.monotonic_ns()
        for begin in range(len(surplus), len(hashes), AT_ONCE):
            with self._lock:
                self._enter(hashes[begin : begin + AT_ONCE])
        with self._lock:
            self._is_open = True
            self._lock.notify_all()
        if num_refused:
            self._count("refused", num_refused, 0)
        log.info(
            "kv_disk", folder=str(self._folder.path), blocks=len(self._index), most=self._index.max_blocks
        )

    def _enter(self, hashes: Sequence[bytes]) -> None:
        for block_hash in hashes:
            self._index.add(block_hash)
        self._on_change(hashes, ())

    def _write(self, block_hash: bytes, slot: int, used_ns: int | None) -> None:
        with self._lock:
            removed = self._index.make_room()
            self._on_change((), removed)
        self._delete(removed)
        is_written = True
        try:
            self._files.write(block_hash, self._slot(slot), used_ns)
        except OSError as error:
            is_written = False
            self._fail("write", error)
        with self._lock:
            # Otherwise it was forgotten meanwhile.
            is_wanted = self._staged.get(block_hash) == slot
            if is_wanted:
                del self._staged[block_hash]
            if is_wanted and is_written:
                self._enter((block_hash,))
            self._free.append(slot)
            self._lock.notify_all()
        if not is_wanted:
            self._delete([block_hash])
        self._count("written" if is_written else "dropped", 1, self._pool.block_bytes if is_written else 0)

    def _delete(self, hashes: Sequence[bytes]) -> None:
        for block_hash in hashes:
            try:
                self._files.delete(block_hash)
            except OSError as error:
                self._fail("delete", error)

    # The reader

    def _read_all(self) -> None:
        buffer = memoryview(bytearray(self._pool.block_bytes))
        while (read := self._reads.get()) is not None:
            began_s, num_read = time.monotonic(), 0
            for block_hash in read.hashes:
                if read.is_stopped or not self._verified(block_hash, buffer) or not read.put(buffer):
                    break
                num_read += 1
            self._observe(read, num_read, time.monotonic() - began_s)
            if not read.is_stopped:
                read.on_end()

    def _verified(self, block_hash: bytes, buffer: memoryview) -> bool:
        """Read a block; if that fails, it is not looked for again."""
        self._block_since = time.monotonic()
        try:
            self._files.read(block_hash, buffer)
        except BlockRefusedError as error:
            self._count("refused", 1, 0)
            log.warning("kv_disk_block_refused", reason=str(error))
        except FileNotFoundError:
            pass
        except OSError as error:
            self._fail("read", error)
        else:
            with self._lock:
                return block_hash in self._index  # else it was forgotten, and its file is about to be deleted
        finally:
            self._block_since = None
        self.forget(block_hash)
        return False

    def _observe(self, read: DiskRead, num_read: int, seconds: float) -> None:
        num_bytes = num_read * self._pool.block_bytes
        with self._lock:
            self._num_to_read -= len(read.hashes)
            if num_read or read.is_stopped:
                # Half of what was known before counts no more.
                self._read_bytes = self._read_bytes / 2 + max(num_bytes, self._pool.block_bytes)
                self._read_s = self._read_s / 2 + seconds
                self._read_at = time.monotonic()
        self._count("read", num_read, num_bytes)

    def _fail(self, what: str, error: OSError) -> None:
        self._count("failed", 1, 0)
        now_s = time.monotonic()
        if now_s >= self._quiet_until:
            self._quiet_until = now_s + QUIET_S
            log.warning("kv_disk_failed", doing=what, folder=str(self._folder.path), reason=str(error))


def _ignore(outcome: str, num_blocks: int, num_bytes: int) -> None:
    """Count nothing."""


def _ignore_change(added: Sequence[bytes], removed: Sequence[bytes]) -> None:
    """Tell nobody."""
