"""The protocols by which a handoff sees a KV pool, on either side."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from kvtransfer.manifest import ChecksumKind
from kvtransfer.receiver_handoff import BlockCopy


class BlockPool(Protocol):
    """Block-major memory: block i is `block_bytes` bytes, back to back with its neighbours."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def block_bytes(self) -> int: ...

    @property
    def fd(self) -> int | None:
        """The memfd that holds the pool from offset 0 on; None if other processes cannot map the pool."""

    def block_bytes_view(self, block: int) -> memoryview:
        """Return the block's own memory, writable, `block_bytes` long."""


@dataclass(frozen=True, slots=True)
class Publication:
    """Blocks of the engine's pool to make readable for receivers, and callbacks for the outcome."""

    first_index: int
    """Position of the first block in the sequence."""
    blocks: Sequence[int]
    behind: Any
    """The engine's mark: once reached, the blocks have their content."""
    ready: Callable[[Sequence[int]], None]
    """Called with the places where the blocks can be read."""
    failed: Callable[[BaseException], None]


class BlockSource(Protocol):
    """The sender's blocks as receivers read them."""

    @property
    def checksum_kind(self) -> ChecksumKind: ...

    def begin(self, handle: int, num_blocks: int) -> None:
        """Begin a handoff of `num_blocks` blocks, which will be published."""

    def publish(self, handle: int, publication: Publication) -> None:
        """Make blocks readable. Neither `ready` nor `failed` is called once the handoff has ended."""

    def checksums(self, places: Sequence[int], stop: threading.Event | None = None) -> list[int]:
        """Compute checksums of the blocks at `places`; fewer if `stop` is set meanwhile.

        Call it on a thread.
        """

    def end(self, handle: int) -> None:
        """End a handoff: its blocks are not read any more."""

    def close(self) -> None:
        """Close the source, after every handoff is over."""


class HostSource(BlockSource, Protocol):
    """A source in host memory."""

    @property
    def pool(self) -> BlockPool:
        """The memory that receivers read."""


class BlockTarget(Protocol):
    """The receiver's blocks as they are written to and verified.

    `behind` is the engine's mark: once reached, nothing else writes to its blocks.
    """

    @property
    def checksum_kind(self) -> ChecksumKind: ...

    @property
    def batch_bytes(self) -> int:
        """Bytes fetched and verified at a time: worth a thread's wake-up, soon over when cancelled."""

    def checksums(self, places: Sequence[int], stop: threading.Event | None = None) -> list[int]:
        """Compute checksums of the blocks at the places that copies were given; as for a source."""

    def place(
        self, copies: Sequence[BlockCopy], behind: Any
    ) -> AbstractAsyncContextManager[Sequence[BlockCopy]]:
        """Return the copies with targets that can be written to until the context ends."""

    async def accept(self, places: Sequence[int], blocks: Sequence[int], behind: Any) -> None:
        """Bring verified content from `places` to the engine's `blocks`.

        Nothing writes to the blocks after this ends, whether by return, error or cancellation.
        """

    def close(self) -> None: ...


class HostTarget(BlockTarget, Protocol):
    """A target in host memory."""

    @property
    def pool(self) -> BlockPool:
        """The memory that is written to first."""
