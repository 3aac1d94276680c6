"""Blocks in the memory of a GPU that both processes reach: mapped by CUDA, copied from one pool to the other.

Neither host memory nor, once a block is offered, the sender's process takes part. Only the engine calls CUDA:
this module maps its memory, fetches from it and closes it through protocols.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from kvtransfer.errors import TransportUnavailableError
from kvtransfer.manifest import CudaPool, CudaReach
from kvtransfer.pools.pool import BlockTarget
from kvtransfer.receiver_handoff import BlockCopy
from kvtransfer.threads import run_to_end
from kvtransfer.transports.transport import check_places, runs
from scheduling.request import Fence


class MappedBlocks(Protocol):
    """The blocks of another process, mapped into this one. Calls block, so they belong on a thread."""

    def fetch(self, stretches: Sequence[tuple[int, int, int]]) -> None:
        """Copy (block of the engine, block of theirs, number of blocks).

        Raises RuntimeError if CUDA fails.
        """

    def close(self) -> None:
        """Unmap the memory, once."""


@dataclass(frozen=True, slots=True)
class CudaTransport:
    """Everything that a process needs to receive into its GPU."""

    reach: CudaReach
    target: BlockTarget
    map: Callable[[CudaPool], MappedBlocks]
    """Maps a sender's pool; raises TransportUnavailableError."""


class CudaIpcReader:
    """Reads the blocks of one sender into the target that they were mapped for.

    `on_failed` is called when a read fails.
    """

    transport = "cuda_ipc"

    def __init__(
        self, blocks: MappedBlocks, source: CudaPool, executor: Executor, on_failed: Callable[[], None]
    ) -> None:
        self._blocks = blocks
        self._source = source
        self._executor = executor
        self._on_failed = on_failed

    async def read(self, fence: Fence, copies: Sequence[BlockCopy]) -> None:
        check_places(copies, self._source.num_blocks)

        def fetch(stop: threading.Event) -> None:
            if not stop.is_set():
                self._blocks.fetch(list(runs(copies)))

        try:
            await run_to_end(self._executor, fetch)
        except RuntimeError as error:
            self._on_failed()
            raise TransportUnavailableError("cuda_ipc", self._source.gpu, str(error)) from error

    async def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # a device that failed keeps nothing either way
            await run_to_end(self._executor, lambda _: self._blocks.close())


def is_in_reach(pool: CudaPool, reach: CudaReach) -> bool:
    """Return whether a receiver with this reach can map `pool`."""
    return bool(pool.host) and reach.host == pool.host and pool.gpu in reach.gpus
