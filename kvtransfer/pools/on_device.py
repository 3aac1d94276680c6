"""Blocks that are handed over in place, from one device's memory to another's."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from kvtransfer.manifest import ChecksumKind
from kvtransfer.pools.pool import Publication
from kvtransfer.receiver_handoff import BlockCopy
from kvtransfer.threads import run_to_end
from runtime.process.threads import started_executor


class DeviceBlocks(Protocol):
    """The engine's blocks. Calls block until they are done, so they belong on a thread."""

    def wait(self, behind: Any) -> None:
        """Wait until the device has done everything that the engine put there before the mark `behind`."""

    def checksums(self, blocks: Sequence[int]) -> list[int]: ...


class _OnDevice:
    """A side of the handoff with one thread, which waits for the device."""

    checksum_kind = ChecksumKind.MULTILINEAR_64

    def __init__(self, blocks: DeviceBlocks) -> None:
        self._blocks = blocks
        self._executor = started_executor(1, "kv-wait")

    def checksums(self, places: Sequence[int], stop: threading.Event | None = None) -> list[int]:
        return self._blocks.checksums(places)

    def close(self) -> None:
        self._executor.shutdown(cancel_futures=True)


class DeviceSource(_OnDevice):
    """Implements `BlockSource`. Lives on the event loop.

    Nothing is copied, so only the blocks themselves are held, which the engine keeps.
    """

    def __init__(self, blocks: DeviceBlocks) -> None:
        super().__init__(blocks)
        self._handles: set[int] = set()
        self._loop = asyncio.get_running_loop()

    def begin(self, handle: int, num_blocks: int) -> None:
        self._handles.add(handle)

    def publish(self, handle: int, publication: Publication) -> None:
        wait = self._executor.submit(self._blocks.wait, publication.behind)
        on_done = partial(self._on_waited, handle, publication)
        wait.add_done_callback(lambda done: self._loop.call_soon_threadsafe(on_done, done))

    def end(self, handle: int) -> None:
        self._handles.remove(handle)

    def _on_waited(self, handle: int, publication: Publication, wait: Future[None]) -> None:
        if handle not in self._handles or wait.cancelled():
            return
        error = wait.exception()
        if error is None:
            publication.ready(publication.blocks)
        else:
            publication.failed(error)


class DeviceTarget(_OnDevice):
    """Implements `BlockTarget`: blocks are written to their final place, which is private."""

    batch_bytes = 64 * 1024 * 1024
    """A GPU copies so much in a tenth of a millisecond."""

    @contextlib.asynccontextmanager
    async def place(self, copies: Sequence[BlockCopy], behind: Any) -> AsyncIterator[Sequence[BlockCopy]]:
        await run_to_end(self._executor, lambda _: self._blocks.wait(behind))
        yield copies

    async def accept(self, places: Sequence[int], blocks: Sequence[int], behind: Any) -> None:
        pass
