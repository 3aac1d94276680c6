"""How blocks get from a sender's pool into ours: one interface, an implementation per kind of road."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Protocol

from kvtransfer.errors import LayoutMismatchError
from kvtransfer.receiver_handoff import BlockCopy
from scheduling.request import Fence


class TransportMode(enum.Enum):
    """The roads that may be taken."""

    AUTO = "auto"
    CUDA_IPC = "cuda_ipc"
    SHM = "shm"
    NIXL = "nixl"
    GRPC = "grpc"


class BlockReader(Protocol):
    """Reads blocks of one sender process. Kept and shared by all handoffs from that process."""

    @property
    def transport(self) -> str:
        """The name in configuration, logs and metrics."""

    async def read(self, fence: Fence, copies: Sequence[BlockCopy]) -> None:
        """Fills the target blocks.

        However it ends (return, error, cancellation): from then on nothing writes to them any more.
        Raises KVTransferError when the blocks cannot be had.
        """

    async def close(self) -> None:
        """Not while a `read` runs."""


def check_places(copies: Sequence[BlockCopy], num_blocks: int) -> None:
    """Raises LayoutMismatchError for a block that lies beyond the sender's pool."""
    for copy in copies:
        if copy.sender_block >= num_blocks:
            raise LayoutMismatchError("sender_block", copy.sender_block, f"under {num_blocks}")


def runs(copies: Sequence[BlockCopy]) -> Iterator[tuple[int, int, int]]:
    """(target, source, blocks) of stretches that are neighbours on both sides, each worth one descriptor."""
    begin = 0
    for end in range(1, len(copies) + 1):
        if end == len(copies) or not _are_neighbours(copies[end - 1], copies[end]):
            yield copies[begin].target_block, copies[begin].sender_block, end - begin
            begin = end


def _are_neighbours(one: BlockCopy, other: BlockCopy) -> bool:
    return (other.target_block, other.sender_block) == (one.target_block + 1, one.sender_block + 1)
