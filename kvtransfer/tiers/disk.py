"""The disk: which blocks have a file, and the thread that writes and deletes files.

The writer first waits until no other process uses the folder, as an earlier process of the same worker may
still be ending, and then finds its files.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import structlog

from kvtransfer.tiers.block_files import BlockFiles, BlockRefusedError
from kvtransfer.tiers.folder import Folder
from kvtransfer.tiers.host_memory import HostMemory
from kvtransfer.tiers.index import DiskIndex
from kvtransfer.tiers.told import Told
from scheduling.memory.tiers import Tier

log = structlog.get_logger()

QUIET_S = 60.0
"""A disk that fails is logged once in this time."""
AT_ONCE = 1000
"""Blocks that an earlier process left are entered so many at a time: others wait for a millisecond."""


@dataclass(frozen=True, slots=True)
class DiskSettings:
    """A folder for blocks, and the most that files in it may take."""

    folder: Folder
    budget_bytes: int
    identity: str
    """Names what else than its hash decides on a block's bytes."""


class Disk:
    """The files of blocks that have left host memory. `lock` guards the memory and the index.

    Raises ValueError if the budget is not enough for a block.
    """

    def __init__(
        self,
        settings: DiskSettings,
        block_bytes: int,
        memory: HostMemory,
        lock: threading.Condition,
        told: Told,
    ) -> None:
        self._folder = settings.folder
        self._block_bytes = block_bytes
        self._memory, self._lock, self._told = memory, lock, told
        self._files = BlockFiles(settings.folder.path, settings.folder.key, settings.identity, block_bytes)
        max_blocks = settings.budget_bytes // self._files.file_bytes
        if max_blocks < 1:
            raise ValueError(
                f"a block takes {self._files.file_bytes} bytes on the disk, {settings.budget_bytes} are "
                "allowed"
            )
        self.index = DiskIndex(max_blocks)
        self.is_open = False
        """Whether blocks are written: the files that were there are known."""
        self._quiet_until = 0.0
        self._dated_ns = 0
        """The time by which files are dated, when the monotonic clock was 0."""
        self._writes: queue.SimpleQueue[tuple[bytes, int | None, int | None] | None] = queue.SimpleQueue()
        # A daemon: a disk that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._write_all, name="kv-disk-write", daemon=True)

    def start(self) -> None:
        """Start the writer; until the files were found, nothing is written."""
        self._thread.start()

    def now_ns(self) -> int:
        """Return the time by which files that are written now are dated."""
        return self._dated_ns + time.monotonic_ns()

    # With the lock

    def write(self, block_hash: bytes, slot: int, used_ns: int | None = None) -> None:
        """Write a block that leaves its slot, soon; `used_ns` says when it was last used, by default now."""
        self._memory.pin(slot)
        self._writes.put((block_hash, slot, used_ns))

    def forget(self, block_hash: bytes) -> None:
        """Drop a block, and delete its file soon."""
        self._remove((block_hash,))
        self._writes.put((block_hash, None, None))

    # Without it

    def read(self, block_hash: bytes, data: memoryview) -> bool:
        """Read a block into `data`; if that fails, or it was forgotten meanwhile, it is not found again."""
        try:
            self._files.read(block_hash, data)
        except BlockRefusedError as error:
            self._told.count(Tier.DISK, "refused", 1, 0)
            log.warning("kv_disk_block_refused", reason=str(error))
        except FileNotFoundError:
            pass
        except OSError as error:
            self._fail("read", error)
        else:
            with self._lock:
                return block_hash in self.index  # else its file is about to be deleted
        with self._lock:
            self.forget(block_hash)
        return False

    def close(self, deadline_s: float) -> bool:
        """Let the writer end behind what waits; return whether it has by `deadline_s`, a monotonic time."""
        self._writes.put(None)
        if self.is_open:
            self._thread.join(max(0.0, deadline_s - time.monotonic()))
        return not self._thread.is_alive()

    def release(self) -> None:
        """Leave the folder to another process. Nothing reads or writes any more."""
        self._folder.release()

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
        surplus = hashes[: max(0, len(hashes) - self.index.max_blocks)]
        self._delete(surplus)
        self._dated_ns = self._folder.now_ns() - time.monotonic_ns()
        for begin in range(len(surplus), len(hashes), AT_ONCE):
            with self._lock:
                self._enter(hashes[begin : begin + AT_ONCE])
        with self._lock:
            self.is_open = True
            self._lock.notify_all()
        if num_refused:
            self._told.count(Tier.DISK, "refused", num_refused, 0)
        log.info("kv_disk", folder=str(self._folder.path), blocks=len(self.index), most=self.index.max_blocks)

    def _enter(self, hashes: Sequence[bytes]) -> None:
        for block_hash in hashes:
            self.index.add(block_hash)
        self._told.on_change(Tier.DISK, hashes, ())

    def _remove(self, hashes: Sequence[bytes]) -> None:
        for block_hash in hashes:
            self.index.discard(block_hash)
        self._told.on_change(Tier.DISK, (), hashes)

    def _write(self, block_hash: bytes, slot: int, used_ns: int | None) -> None:
        with self._lock:
            removed = self.index.make_room()
            self._told.on_change(Tier.DISK, (), removed)
        self._delete(removed)
        is_written = True
        try:
            self._files.write(block_hash, self._memory.data(slot), self._memory.sum_of(slot), used_ns)
        except OSError as error:
            is_written = False
            self._fail("write", error)
        num_bytes = self._block_bytes if is_written else 0
        self._told.count(Tier.DISK, "written" if is_written else "dropped", 1, num_bytes)
        with self._lock:
            # Otherwise it was forgotten meanwhile.
            is_wanted = self._memory.is_leaving(block_hash, slot)
            if is_wanted:
                self._memory.discard(block_hash)
                self._told.on_change(self._told.in_memory, (), (block_hash,))
            if is_wanted and is_written:
                self._enter((block_hash,))
            self._memory.unpin(slot)
            self._lock.notify_all()
        if not is_wanted:
            self._delete([block_hash])

    def _delete(self, hashes: Iterable[bytes]) -> None:
        for block_hash in hashes:
            try:
                self._files.delete(block_hash)
            except OSError as error:
                self._fail("delete", error)

    def _fail(self, what: str, error: OSError) -> None:
        self._told.count(Tier.DISK, "failed", 1, 0)
        now_s = time.monotonic()
        if now_s >= self._quiet_until:
            self._quiet_until = now_s + QUIET_S
            log.warning("kv_disk_failed", doing=what, folder=str(self._folder.path), reason=str(error))
