"""Blocks in host memory: their content check, and a pool that handoffs use in place.

The check is xxh3 with 64 bits over all bytes of a block. It finds damage by a link, a copy or a bug. It does
not protect from forgery; the chained block hash does. `receiver_handoff` compares the checksum of each copy
with the one that was offered. xxhash releases the interpreter lock from 96 KiB on, so these calls belong on a
thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import xxhash

from kvtransfer.manifest import ChecksumKind
from kvtransfer.pools.pool import BlockPool, Publication
from kvtransfer.receiver_handoff import BlockCopy


def checksum(data: bytes | bytearray | memoryview) -> int:
    """Return the checksum of one block's bytes."""
    return xxhash.xxh3_64_intdigest(data)


def checksum_blocks(pool: BlockPool, blocks: Iterable[int], stop: threading.Event | None = None) -> list[int]:
    """Compute checksums of pool blocks, in order; end early, with fewer, once `stop` is set."""
    checksums: list[int] = []
    for block in blocks:
        if stop is not None and stop.is_set():
            break
        checksums.append(checksum(pool.block_bytes_view(block)))
    return checksums


class HostBlocks:
    """Blocks in host memory, as either side of a handoff verifies them."""

    checksum_kind = ChecksumKind.XXH3_64
    batch_bytes = 4 * 1024 * 1024
    """Takes a processor a millisecond."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool

    def checksums(self, places: Sequence[int], stop: threading.Event | None = None) -> list[int]:
        return checksum_blocks(self.pool, places, stop)


class InPlace(HostBlocks):
    """Implements `BlockSource` and `BlockTarget`: blocks are read from and written to where they are."""

    def begin(self, handle: int, num_blocks: int) -> None:
        pass

    def publish(self, handle: int, publication: Publication) -> None:
        publication.ready(publication.blocks)

    def end(self, handle: int) -> None:
        pass

    def place(
        self, copies: Sequence[BlockCopy], behind: Any
    ) -> AbstractAsyncContextManager[Sequence[BlockCopy]]:
        return contextlib.nullcontext(copies)

    async def accept(self, places: Sequence[int], blocks: Sequence[int], behind: Any) -> None:
        pass

    def close(self) -> None:
        pass
