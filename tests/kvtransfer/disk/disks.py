"""A pool in plain memory, and tiers over it."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvtransfer.disk.reads import DiskRead
from kvtransfer.disk.tier import AT_ONCE, DiskTier, Folder
from tests.patience import PATIENCE_S

BLOCK_BYTES = 96
FILE_BYTES = 4096


class MemoryPool:
    """Implements `kvtransfer.pools.pool.BlockPool`."""

    def __init__(self, memory: memoryview, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self.num_blocks = len(memory) // block_bytes
        self.fd = None
        self._memory = memory

    def block_bytes_view(self, block: int) -> memoryview:
        return self._memory[block * self.block_bytes : (block + 1) * self.block_bytes]


def memory_pool(num_blocks: int = 8) -> MemoryPool:
    return MemoryPool(memoryview(bytearray(num_blocks * BLOCK_BYTES)), BLOCK_BYTES)


def name_of(number: int) -> bytes:
    return number.to_bytes(16, "little")


def content_of(number: int) -> bytes:
    return bytes((number * 7 + place) % 256 for place in range(BLOCK_BYTES))


class Tier(DiskTier):
    """A tier that counts, and whose blocks are numbers."""

    def __init__(
        self, path: Path, *, most: int = 100, pool: MemoryPool | None = None, identity: str = "model"
    ) -> None:
        self.pool = pool or memory_pool()
        self.counts: Counter[str] = Counter()
        self.told: set[bytes] = set()
        """The blocks that are there by the changes that were told."""
        self._guard = threading.Lock()
        super().__init__(Folder(path), most * FILE_BYTES, self.pool, identity)

    def open(self) -> Tier:
        self.start(self._add, self._change)
        assert self.wait_until_open(PATIENCE_S)
        return self

    def put(self, number: int, block: int = 0) -> None:
        """Let a block leave the pool, and wait until it is written."""
        self.pool.block_bytes_view(block)[:] = content_of(number)
        self.keep(block, name_of(number))
        assert self.wait_until_written(PATIENCE_S)

    def get(self, numbers: Sequence[int]) -> int:
        """Read blocks into the first ones of the pool; return how many came, which are right."""
        self.pool.block_bytes_view(0)[:] = bytes(BLOCK_BYTES)
        num_read = read_to_end(self, list(range(len(numbers))), [name_of(number) for number in numbers])
        for block, number in enumerate(numbers[:num_read]):
            assert bytes(self.pool.block_bytes_view(block)) == content_of(number)
        return num_read

    def has(self, number: int) -> bool:
        return self.num_leading([name_of(number)]) == 1

    def path(self, number: int) -> Path:
        return self._files.path(name_of(number))

    def _change(self, added: Sequence[bytes], removed: Sequence[bytes]) -> None:
        assert len(added) <= AT_ONCE, "others wait for the lock meanwhile"
        self.told |= set(added)
        self.told -= set(removed)

    def _add(self, outcome: str, num_blocks: int, num_bytes: int) -> None:
        with self._guard:
            self.counts[outcome] += num_blocks
            self.counts[f"{outcome} bytes"] += num_bytes


def read_to_end(tier: DiskTier, blocks: Sequence[int], hashes: Sequence[bytes]) -> int:
    """Read until nothing more comes; return how many blocks came."""
    ended = threading.Event()
    read: DiskRead = tier.read(blocks, hashes, ended.set)
    assert ended.wait(PATIENCE_S)
    return read.stop()


@contextlib.contextmanager
def opened(
    path: Path, *, most: int = 100, pool: MemoryPool | None = None, identity: str = "model"
) -> Iterator[Tier]:
    """Open a tier, and close it in order, with nothing cached."""
    tier = Tier(path, most=most, pool=pool, identity=identity).open()
    try:
        yield tier
    finally:
        tier.close([], PATIENCE_S)
