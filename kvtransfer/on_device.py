"""A sender's blocks offered where they are, on a device, to receivers that map its memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

from kvtransfer.manifest import ChecksumKind


class DeviceBlocks(Protocol):
    """The engine's blocks. Calls return when they are done, so they belong on a thread."""

    def wait(self, behind: Any) -> None:
        """Until what the engine has put before its word `behind` is in the blocks."""

    def checksums(self, blocks: Sequence[int]) -> list[int]: ...


class OnDevice:
    """Implements `BlockSource`. Lives on the event loop.

    Nothing is copied, so nothing is held but the blocks themselves, which are the engine's to keep.
    """

    checksum_kind = ChecksumKind.MULTILINEAR_64

    def __init__(self, blocks: DeviceBlocks) -> None:
        self._blocks = blocks
        self._handles: set[int] = set()
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="kv-wait")

    def begin(self, handle: int, num_blocks: int) -> None:
        self._handles.add(handle)

    def show(
        self,
        handle: int,
        first_index: int,
        blocks: Sequence[int],
        behind: Any,
        ready: Callable[[Sequence[int]], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        wait = self._executor.submit(self._blocks.wait, behind)
        on_done = partial(self._on_waited, handle, blocks, ready, failed)
        wait.add_done_callback(lambda done: self._loop.call_soon_threadsafe(on_done, done))

    def checksums(self, places: Sequence[int], stop: threading.Event | None = None) -> list[int]:
        return self._blocks.checksums(places)

    def end(self, handle: int) -> None:
        self._handles.remove(handle)

    def close(self) -> None:
        self._executor.shutdown(cancel_futures=True)

    def _on_waited(
        self,
        handle: int,
        blocks: Sequence[int],
        ready: Callable[[Sequence[int]], None],
        failed: Callable[[BaseException], None],
        wait: Future[None],
    ) -> None:
        if handle not in self._handles or wait.cancelled():
            return
        error = wait.exception()
        if error is None:
            ready(blocks)
        else:
            failed(error)
