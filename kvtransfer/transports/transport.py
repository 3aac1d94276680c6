"""The interface of all transports, which copy blocks from a sender's pool into ours."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Protocol

from kvtransfer.errors import LayoutMismatchError
from kvtransfer.receiver_handoff import BlockCopy
from scheduling.request import Fence


class TransportMode(enum.Enum):
    """Which transport may be used."""

    AUTO = "auto"
    CUDA_IPC = "cuda_ipc"
    SHM = "shm"
    NIXL = "nixl"
    GRPC = "grpc"


class BlockReader(Protocol):
    """Reads blocks of one sender process; shared by all handoffs from that process."""

    @property
    def transport(self) -> str:
        """Its name in configuration, logs and metrics."""

    async def read(self, fence: Fence, copies: Sequence[BlockCopy]) -> None:
        """Fill the target blocks. Raises KVTransferError if the blocks cannot be read.

        Nothing writes to them after this ends, whether by return, error or cancellation.
        """

    async def close(self) -> None:
        """Close the reader; no `read` may be running."""


def check_places(copies: Sequence[BlockCopy], num_blocks: int) -> None:
    """Raise LayoutMismatchError if a block lies beyond the sender's pool."""
    for copy in copies:
        if copy.sender_block >= num_blocks:
            raise LayoutMismatchError("sender_block", copy.sender_block, f"under {num_blocks}")


def runs(copies: Sequence[BlockCopy]) -> Iterator[tuple[int, int, int]]:
    """Yield (target, source, number of blocks) of stretches that are contiguous on both sides."""
    begin = 0
    for end in range(1, len(copies) + 1):
        if end == len(copies) or not _are_neighbours(copies[end - 1], copies[end]):
            yield copies[begin].target_block, copies[begin].sender_block, end - begin
            begin = end


def _are_neighbours(first: BlockCopy, second: BlockCopy) -> bool:
    return (second.target_block, second.sender_block) == (first.target_block + 1, first.sender_block + 1)
