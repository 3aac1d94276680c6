"""A pool in host memory that handoffs use in place."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from kvtransfer.pools.pool import Publication
from kvtransfer.pools.verify import HostBlocks
from kvtransfer.receiver_handoff import BlockCopy


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
