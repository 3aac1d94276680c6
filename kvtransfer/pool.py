"""What a handoff needs of a KV pool."""

from __future__ import annotations

from typing import Protocol


class BlockPool(Protocol):
    """Block-major memory: block i is `block_bytes` bytes, back to back with its neighbours."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def block_bytes(self) -> int: ...

    @property
    def fd(self) -> int | None:
        """The memfd the pool lives in from its offset 0 on; None when other processes cannot map it."""

    def block_bytes_view(self, block: int) -> memoryview:
        """The block's memory itself, writable, `block_bytes` long."""
