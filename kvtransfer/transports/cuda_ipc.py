"""Blocks in the memory of a GPU that both processes reach: mapped by CUDA, copied from one pool to the other.

The host's memory has no part in it, nor has the sender's process once a block is offered. Only the engine
knows CUDA: here its memory is something to map, fetch from and let go of.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from kvtransfer.manifest import CudaPool, CudaReach
from kvtransfer.pool import BlockTarget
from kvtransfer.receiver_handoff import BlockCopy
from kvtransfer.threads import run_to_end
from kvtransfer.transport import check_places, runs
from scheduling.request import Fence


class MappedBlocks(Protocol):
    """The blocks of another process, mapped into this one."""

    def fetch(self, stretches: Sequence[tuple[int, int, int]]) -> None:
        """Copies (place in the target's pool, block of theirs, blocks); done on return. On any thread."""

    def close(self) -> None:
        """Lets go of the memory, which its owner cannot free before, not even by dying."""


@dataclass(frozen=True, slots=True)
class CudaRoad:
    """How a process with a GPU receives into it."""

    reach: CudaReach
    target: BlockTarget
    map: Callable[[CudaPool], MappedBlocks]
    """Raises TransportUnavailableError."""


class CudaIpcReader:
    """Reads the blocks of one sender into the target of the road that mapped them."""

    transport = "cuda_ipc"

    def __init__(self, blocks: MappedBlocks, num_blocks: int, executor: Executor) -> None:
        self._blocks = blocks
        self._num_blocks = num_blocks
        self._executor = executor

    async def read(self, fence: Fence, copies: Sequence[BlockCopy]) -> None:
        check_places(copies, self._num_blocks)

        def fetch(stop: threading.Event) -> None:
            if not stop.is_set():
                self._blocks.fetch(list(runs(copies)))

        await run_to_end(self._executor, fetch)

    async def close(self) -> None:
        self._blocks.close()


def is_in_reach(pool: CudaPool, host: str, reach: CudaReach) -> bool:
    """Whether a receiver with this reach can map `pool`, of a process on `host`."""
    return bool(host) and reach.host == host and pool.gpu in reach.gpus
