"""Host memory between blocks on a device and their handoffs.

    sender     block on the device ──store──▶ slot ◀──read── receiver
    receiver   sender ──▶ slot ──checksum──▶ ──load──▶ block on the device

Offers name slots, so receivers and transports know of no device. A slot has one owner: a handoff, until it is
over and no copy writes to the slot any more; or a batch that is being received, until it is on the device.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from kvtransfer.pools.host_blocks import HostBlocks
from kvtransfer.pools.pool import BlockPool, Publication
from kvtransfer.receiver_handoff import BlockCopy
from kvtransfer.threads import run_to_end
from runtime.process.threads import started_executor


class DeviceCopies(Protocol):
    """Copies between the engine's blocks and slots of host memory.

    Calls block until they are done, so they belong on a thread. They wait for the engine's mark `behind`.
    """

    @property
    def slots(self) -> BlockPool: ...

    def store(self, blocks: Sequence[int], slots: Sequence[int], behind: Any) -> None: ...

    def load(self, slots: Sequence[int], blocks: Sequence[int], behind: Any) -> None: ...


class _FreeSlots:
    """Free slots, reserved from the lowest, so that neighbours go together in one copy."""

    def __init__(self, num_slots: int) -> None:
        self._free = list(range(num_slots - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._free)

    def reserve(self, num_slots: int) -> list[int]:
        assert num_slots <= len(self), (num_slots, len(self))
        return [self._free.pop() for _ in range(num_slots)]

    def release(self, slots: Sequence[int]) -> None:
        self._free.extend(slots)
        self._free.sort(reverse=True)


@dataclass(slots=True, eq=False)
class _Staged:
    """The staging memory of one handoff."""

    num_blocks: int
    slots: list[int] = field(default_factory=list)
    """One for each block, in their order; empty until there is room for all."""
    waiting: list[Callable[[], None]] = field(default_factory=list)
    """Copies to begin once there is room."""
    copies: set[Future[None]] = field(default_factory=set)
    is_over: bool = False


class SendStaging(HostBlocks):
    """Implements `BlockSource` for blocks on a device.

    A handoff reserves slots for all of its blocks when the first are published, or waits for its turn: if
    handoffs reserved block by block, several could wait for each other's slots. Lives on the event loop.
    """

    def __init__(self, copies: DeviceCopies) -> None:
        super().__init__(copies.slots)
        self._copies = copies
        self._free = _FreeSlots(copies.slots.num_blocks)
        self._staged: dict[int, _Staged] = {}
        self._queue: deque[_Staged] = deque()
        self._loop = asyncio.get_running_loop()
        self._executor = started_executor(1, "kv-store")

    def begin(self, handle: int, num_blocks: int) -> None:
        self._staged[handle] = _Staged(num_blocks)

    def publish(self, handle: int, publication: Publication) -> None:
        staged = self._staged[handle]
        # The staging memory is large enough for the longest sequence of the engine.
        assert staged.num_blocks <= self.pool.num_blocks, (staged.num_blocks, self.pool.num_blocks)
        copy = partial(self._copy, staged, publication)
        if staged.slots:
            copy()
            return
        if not staged.waiting:
            self._queue.append(staged)
        staged.waiting.append(copy)
        self._serve()

    def end(self, handle: int) -> None:
        staged = self._staged.pop(handle)
        staged.is_over = True
        if staged.waiting:
            self._queue.remove(staged)
        for copy in list(staged.copies):
            copy.cancel()  # one that runs goes on, and is waited for
        self._free_if_idle(staged)

    def close(self) -> None:
        self._executor.shutdown(cancel_futures=True)

    def _serve(self) -> None:
        """Give slots to the handoffs that have waited longest, while there are enough."""
        while self._queue and self._queue[0].num_blocks <= len(self._free):
            staged = self._queue.popleft()
            staged.slots = self._free.reserve(staged.num_blocks)
            waiting, staged.waiting = staged.waiting, []
            for copy in waiting:
                copy()

    def _copy(self, staged: _Staged, publication: Publication) -> None:
        blocks = publication.blocks
        slots = staged.slots[publication.first_index : publication.first_index + len(blocks)]
        copy = self._executor.submit(self._copies.store, blocks, slots, publication.behind)
        staged.copies.add(copy)
        on_done = partial(self._on_copied, staged, slots, publication)
        copy.add_done_callback(lambda done: self._loop.call_soon_threadsafe(on_done, done))

    def _on_copied(
        self, staged: _Staged, slots: Sequence[int], publication: Publication, copy: Future[None]
    ) -> None:
        staged.copies.remove(copy)
        if staged.is_over:
            self._free_if_idle(staged)
            return
        error = copy.exception()
        if error is None:
            publication.ready(slots)
        else:
            publication.failed(error)

    def _free_if_idle(self, staged: _Staged) -> None:
        if staged.is_over and not staged.copies:
            self._free.release(staged.slots)
            staged.slots = []
            self._serve()


class ReceiveStaging(HostBlocks):
    """Implements `BlockTarget` for blocks on a device. `copies` has slots for all batches in flight."""

    def __init__(self, copies: DeviceCopies) -> None:
        super().__init__(copies.slots)
        self._copies = copies
        self._free = _FreeSlots(copies.slots.num_blocks)
        self._executor = started_executor(1, "kv-load")

    @contextlib.asynccontextmanager
    async def place(self, copies: Sequence[BlockCopy], behind: Any) -> AsyncIterator[Sequence[BlockCopy]]:
        slots = self._free.reserve(len(copies))
        try:
            yield [
                dataclasses.replace(copy, target_block=slot) for copy, slot in zip(copies, slots, strict=True)
            ]
        finally:
            self._free.release(slots)

    async def accept(self, places: Sequence[int], blocks: Sequence[int], behind: Any) -> None:
        def load(stop: threading.Event) -> None:
            if not stop.is_set():
                self._copies.load(places, blocks, behind)

        await run_to_end(self._executor, load)

    def close(self) -> None:
        self._executor.shutdown()
