"""How blocks get from a sender's pool into ours: one interface, an implementation per kind of road."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

from kvtransfer.receiver_handoff import BlockCopy
from scheduling.request import Fence


class TransportMode(enum.Enum):
    """The roads that may be taken."""

    AUTO = "auto"
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
