"""A pool in plain memory, and tiers over it."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvtransfer.tiers.disk import AT_ONCE, DiskSettings
from kvtransfer.tiers.folder import Folder
from kvtransfer.tiers.reads import TierRead
from kvtransfer.tiers.tiers import Tiers
from scheduling.memory.tiers import Tier
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


class Driven(Tiers):
    """Tiers that count, and whose blocks are numbers: `most` on the disk, and `most_in_host` in memory."""

    def __init__(
        self,
        path: Path | None,
        *,
        most: int = 100,
        most_in_host: int = 0,
        pool: MemoryPool | None = None,
        identity: str = "model",
    ) -> None:
        self.pool = pool or memory_pool()
        self.counts: Counter[str] = Counter()
        """By outcome, over both tiers."""
        self.of_host: Counter[str] = Counter()
        self.told_of: defaultdict[Tier, set[bytes]] = defaultdict(set)
        """The blocks that are in each tier by the changes that were told."""
        self._guard = threading.Lock()
        disk = None if path is None else DiskSettings(Folder(path), most * FILE_BYTES, identity)
        super().__init__(self.pool, most_in_host * self.pool.block_bytes, disk)

    @property
    def told(self) -> set[bytes]:
        return self.told_of[Tier.DISK]

    def open(self) -> Driven:
        self.start(self._add, self._change)
        assert self.wait_until_open(PATIENCE_S)
        return self

    def put(self, number: int, block: int = 0) -> None:
        """Let a block leave the pool, and wait until all is written that leaves host memory."""
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

    def num_leading(self, numbers: Sequence[int]) -> int:
        hits = self.readable([name_of(number) for number in numbers])
        return max((hit.num_blocks for hit in hits), default=0)

    def has(self, number: int) -> bool:
        return self.num_leading([number]) == 1

    def has_in_host(self, number: int) -> bool:
        return name_of(number) in self._memory

    def expected_s(self, *numbers: int) -> float:
        """Return how long a read of blocks that are there is expected to take."""
        hit = self.readable([name_of(number) for number in numbers])[-1]
        assert hit.num_blocks == len(numbers)
        return hit.read_s

    def path(self, number: int) -> Path:
        assert self._disk is not None
        return self._disk._files.path(name_of(number))

    def _change(self, tier: Tier, added: Sequence[bytes], removed: Sequence[bytes]) -> None:
        assert len(added) <= AT_ONCE, "others wait for the lock meanwhile"
        assert tier in self.present
        self.told_of[tier] |= set(added)
        self.told_of[tier] -= set(removed)

    def _add(self, tier: Tier, outcome: str, num_blocks: int, num_bytes: int) -> None:
        with self._guard:
            for counts in (self.counts, self.of_host) if tier is Tier.HOST else (self.counts,):
                counts[outcome] += num_blocks
                counts[f"{outcome} bytes"] += num_bytes


def read_to_end(tiers: Tiers, blocks: Sequence[int], hashes: Sequence[bytes]) -> int:
    """Read until nothing more comes; return how many blocks came."""
    ended = threading.Event()
    read: TierRead = tiers.read(blocks, hashes, ended.set)
    assert ended.wait(PATIENCE_S)
    return read.stop()


@contextlib.contextmanager
def opened(
    path: Path | None,
    *,
    most: int = 100,
    most_in_host: int = 0,
    pool: MemoryPool | None = None,
    identity: str = "model",
) -> Iterator[Driven]:
    """Open tiers, and close them in order, with nothing cached."""
    tiers = Driven(path, most=most, most_in_host=most_in_host, pool=pool, identity=identity).open()
    try:
        yield tiers
    finally:
        tiers.close([], PATIENCE_S)
