"""A pool in plain memory, and tiers over it."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kvtransfer.tiers.copies import InPlaceCopies, Mark
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


class Gate:
    """A mark that is reached when a test says so."""

    def __init__(self) -> None:
        self.is_awaited, self._is_reached = threading.Event(), threading.Event()

    def reach(self) -> None:
        self._is_reached.set()

    def synchronize(self) -> None:
        self.is_awaited.set()
        assert self._is_reached.wait(PATIENCE_S)


class LateCopies:
    """Implements `TierCopies` as a device does: copies are made in order, and over once `gate` is open."""

    is_immediate = False
    num_loaded_at_once = 2

    def __init__(self, pool: MemoryPool, num_slots: int) -> None:
        self._copies = InPlaceCopies(pool, num_slots)
        self.slots = self._copies.slots
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[int] = []
        """How many blocks each call of `store` had."""
        self.error: RuntimeError | None = None
        """Raised by who waits for copies."""
        self.refuses = False
        """Whether copies to slots cannot even be queued."""

    def store(self, blocks: Sequence[int], slots: Sequence[int]) -> Iterator[int]:
        self.batches.append(len(blocks))
        if self.refuses:
            raise RuntimeError("CUDA out of memory")
        return self._wait(self._copies.store(blocks, slots))

    def load(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        if self.error is not None:
            raise self.error
        self._copies.load(slots, blocks)

    def _wait(self, sums: list[int]) -> Iterator[int]:
        for block_sum in sums:
            assert self.gate.wait(PATIENCE_S)
            if self.error is not None:
                raise self.error
            yield block_sum


def name_of(number: int) -> bytes:
    return number.to_bytes(16, "little")


def content_of(number: int) -> bytes:
    return bytes((number * 7 + place) % 256 for place in range(BLOCK_BYTES))


class Driven(Tiers):
    """Tiers that count, and whose blocks are numbers: `most` on the disk, and `most_in_host` in memory.

    With `is_late`, copies are made as on a device.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        most: int = 100,
        most_in_host: int = 0,
        pool: MemoryPool | None = None,
        identity: str = "model",
        is_late: bool = False,
    ) -> None:
        self.pool = pool or memory_pool()
        self.counts: Counter[str] = Counter()
        """By outcome, over both tiers."""
        self.of_host: Counter[str] = Counter()
        self.told_of: defaultdict[Tier, set[bytes]] = defaultdict(set)
        """The blocks that are in each tier by the changes that were told."""
        self._guard = threading.Lock()
        disk = None if path is None else DiskSettings(Folder(path), most * FILE_BYTES, identity)
        late = partial(LateCopies, self.pool) if is_late else None
        super().__init__(self.pool, most_in_host * self.pool.block_bytes, disk, late)

    @property
    def told(self) -> set[bytes]:
        return self.told_of[Tier.DISK]

    @property
    def late(self) -> LateCopies:
        assert isinstance(self._copies, LateCopies)
        return self._copies

    def open(self) -> Driven:
        self.start(self._add, self._change)
        assert self.wait_until_open(PATIENCE_S)
        return self

    def put(self, number: int, block: int = 0) -> None:
        """Let a block leave the pool, and wait until all is written that leaves host memory."""
        self.begin([number], block)
        assert self.wait_until_written(PATIENCE_S)

    def begin(self, numbers: Sequence[int], first: int = 0) -> None:
        """Let blocks leave the pool together, wait for nothing, and overwrite them."""
        blocks = range(first, first + len(numbers))
        for block, number in zip(blocks, numbers, strict=True):
            self.pool.block_bytes_view(block)[:] = content_of(number)
        self.keep(blocks, [name_of(number) for number in numbers])
        for block in blocks:
            self.pool.block_bytes_view(block)[:] = bytes(BLOCK_BYTES)

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


def read_to_end(
    tiers: Tiers, blocks: Sequence[int], hashes: Sequence[bytes], behind: Mark | None = None
) -> int:
    """Read until nothing more comes; return how many blocks came."""
    ended = threading.Event()
    read: TierRead = tiers.read(blocks, hashes, ended.set, behind)
    assert ended.wait(PATIENCE_S)
    return read.stop()


@contextlib.contextmanager
def opened(path: Path | None, **settings: Any) -> Iterator[Driven]:
    """Open `Driven` tiers, and close them in order, with nothing cached."""
    tiers = Driven(path, **settings).open()
    try:
        yield tiers
    finally:
        tiers.close([], PATIENCE_S)
