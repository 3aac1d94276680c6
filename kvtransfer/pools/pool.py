"""What a handoff needs of a KV pool, on either side."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from kvtransfer.manifest import ChecksumKind
from kvtransfer.receiver_handoff import BlockCopy

HOST_BATCH_BYTES = 4 * 1024 * 1024
"""A millisecond's work for a processor."""


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


@dataclass(frozen=True, slots=True)
class Publication:
    """Blocks of the engine's pool that receivers are to be able to read, and whom to tell."""

    first_index: int
    """Position of the first one in the sequence."""
    blocks: Sequence[int]
    behind: Any
    """The engine's own word for when they have their content."""
    ready: Callable[[Sequence[int]], None]
    """Is given where they can be read."""
    failed: Callable[[BaseException], None]


class BlockSource(Protocol):
    """A sender's blocks, as receivers can read them."""

    @property
    def checksum_kind(self) -> ChecksumKind: ...

    def begin(self, handle: int, num_blocks: int) -> None:
        """A handoff of so many blocks, which will be shown."""

    def show(self, handle: int, publication: Publication) -> None:
        """Neither `ready` nor `failed` is called once the handoff has ended."""

    def checksums(self, places: Sequence[int], stop: threading.Event | None = None) -> list[int]:
        """Of what can be read there; fewer when `stop` is set meanwhile. It takes a while: for a thread."""

    def end(self, handle: int) -> None:
        """The handoff is over: nobody is to read its blocks."""

    def close(self) -> None:
        """When every handoff is over."""


class HostSource(BlockSource, Protocol):
    """A source in host memory."""

    @property
    def pool(self) -> BlockPool:
        """What receivers read."""


class BlockTarget(Protocol):
    """A receiver's blocks, as they can be written to and verified.

    `behind` is the engine's own word for when nothing else writes to its blocks.
    """

    @property
    def checksum_kind(self) -> ChecksumKind: ...

    @property
    def batch_bytes(self) -> int:
        """Fetched and verified at a time: worth a thread's wake-up, little to wait for when cancelled."""

    def checksums(self, places: Sequence[int], stop: threading.Event | None = None) -> list[int]:
        """As a source's, of places that copies were given."""

    def place(
        self, copies: Sequence[BlockCopy], behind: Any
    ) -> AbstractAsyncContextManager[Sequence[BlockCopy]]:
        """The same copies with their targets where they can be written to, until the context ends."""

    async def accept(self, places: Sequence[int], blocks: Sequence[int], behind: Any) -> None:
        """What is in these places has been verified: it is in the engine's blocks on return.

        However it ends: from then on nothing writes to them any more.
        """

    def close(self) -> None: ...


class HostTarget(BlockTarget, Protocol):
    """A target in host memory."""

    @property
    def pool(self) -> BlockPool:
        """What is written to first."""
