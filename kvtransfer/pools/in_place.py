"""A pool in host memory that handoffs use in place."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from kvtransfer.manifest import ChecksumKind
from kvtransfer.pools.pool import HOST_BATCH_BYTES, BlockPool, Publication
from kvtransfer.receiver_handoff import BlockCopy
from kvtransfer.verify import checksum_blocks


class InPlace:
    """Implements `BlockSource` and `BlockTarget`: blocks are read from and written to where they are."""

    checksum_kind = ChecksumKind.XXH3_64
    batch_bytes = HOST_BATCH_BYTES

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool

    def checksums(self, places: Sequence[int], stop: threading.Event | None = None) -> list[int]:
        return checksum_blocks(self.pool, places, stop)

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
