"""Blocks in the memory of a GPU that both processes reach: mapped by CUDA, copied from one pool to the other.

The host's memory has no part in it, nor has the sender's process once a block is offered. Only the engine
knows CUDA: here its memory is something to map, fetch from and let go of.
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
    """The blocks of another process, mapped into this one. Calls return when they are done: for a thread."""

    def fetch(self, stretches: Sequence[tuple[int, int, int]]) -> None:
        """Copies (place in the engine's pool, block of theirs, blocks); RuntimeError where CUDA fails."""

    def close(self) -> None:
        """Lets go of the memory, once."""


@dataclass(frozen=True, slots=True)
class CudaRoad:
    """How a process with a GPU receives into it."""

    reach: CudaReach
    target: BlockTarget
    map: Callable[[CudaPool], MappedBlocks]
    """Raises TransportUnavailableError."""


class CudaIpcReader:
    """Reads the blocks of one sender into the target of the road that mapped them.

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
        with contextlib.suppress(RuntimeError):  # of a device that failed nothing is kept either way
            await run_to_end(self._executor, lambda _: self._blocks.close())


def is_in_reach(pool: CudaPool, reach: CudaReach) -> bool:
    """Whether a receiver with this reach can map `pool`."""
    return bool(pool.host) and reach.host == pool.host and pool.gpu in reach.gpus
