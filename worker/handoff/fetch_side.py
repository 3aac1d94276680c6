"""Fetches blocks from workers that lend them, for as long as that pays."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import structlog

from engine.core.commands import BlocksRead, Command
from engine.core.report import Mark, Reading, StepReport
from kvtransfer.errors import PeerLostError, SenderAbortedError, describe
from kvtransfer.receiver_handoff import Borrowed, ReceiveTask
from kvtransfer.receiving.links import Links
from kvtransfer.receiving.receiver import Receiver
from scheduling.request import Fence, PrefixSource
from worker.metrics import WorkerMetrics

log = structlog.get_logger()


class FetchSide:
    """Called on the event loop. Handles are the engine's; the receiver belongs to the caller."""

    def __init__(
        self,
        receiver: Receiver,
        links: Links,
        incarnation: str,
        submit: Callable[[Command], None],
        metrics: WorkerMetrics,
    ) -> None:
        self._receiver = receiver
        self._links = links
        self._incarnation = incarnation
        self._submit = submit
        self._metrics = metrics
        self._numbers = itertools.count(1)
        self._fetches: dict[int, asyncio.Task[BlocksRead]] = {}

    def on_report(self, report: StepReport) -> None:
        for reading in report.reads:
            if reading.source is not None:
                self._begin(reading, reading.source, report.received_behind)

    def cancel(self, handle: int) -> None:
        """End a fetch, if one runs; the engine learns of it when nothing writes to its blocks any more."""
        fetch = self._fetches.get(handle)
        if fetch is not None:
            fetch.cancel()

    async def close(self) -> None:
        fetches = list(self._fetches.values())
        for fetch in fetches:
            fetch.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)

    def _begin(self, reading: Reading, source: PrefixSource, behind: Mark | None) -> None:
        task = ReceiveTask(
            fence=self._new_fence(source),
            source_address=source.address,
            blocks=reading.blocks,
            hashes=reading.hashes,
            num_held=0,
            behind=behind,
            borrows_s=reading.limit_s,
        )
        fetch = asyncio.create_task(self._fetch(reading.handle, task), name="kv-fetch")
        self._fetches[reading.handle] = fetch
        fetch.add_done_callback(lambda done: self._on_done(reading.handle, done))

    def _new_fence(self, source: PrefixSource) -> Fence:
        """Return a fence that nothing else has: no attempt of a request hands these blocks over."""
        number = next(self._numbers)
        return Fence("", "prefix", 0, number, 0, source.incarnation, self._incarnation, self._incarnation)

    async def _fetch(self, handle: int, task: ReceiveTask) -> BlocksRead:
        """Return the command that ends the wait in the engine; nothing writes to the blocks any more."""
        fetch = self._links.begin(task.fence.source_incarnation, len(task.blocks))
        try:
            borrowed = await self._receiver.borrow(task)
        except BaseException as error:
            self._links.cancel(fetch)
            if isinstance(error, asyncio.CancelledError):
                raise
            self._metrics.loop_errors.labels("fetch").inc()
            log.exception("kv_fetch_crashed", fence=describe(task.fence))
            return BlocksRead(handle, 0, failed=True)
        # Blocks that are not lent, or a lender that is gone, do not show how fast the link is.
        if isinstance(borrowed.error, PeerLostError | SenderAbortedError):
            self._links.cancel(fetch)
        else:
            self._links.end(fetch, borrowed.num_blocks, borrowed.wait_s)
        self._observe(task, borrowed)
        return BlocksRead(handle, borrowed.num_blocks, failed=borrowed.num_blocks < len(task.blocks))

    def _on_done(self, handle: int, fetch: asyncio.Task[BlocksRead]) -> None:
        """End the wait in the engine exactly once, also if the fetch was cancelled before it began."""
        del self._fetches[handle]
        self._submit(BlocksRead(handle, 0) if fetch.cancelled() else fetch.result())

    def _observe(self, task: ReceiveTask, borrowed: Borrowed) -> None:
        metrics, num_bytes = self._metrics, borrowed.num_blocks * self._receiver.pool.block_bytes
        metrics.fetches.labels(_outcome(task, borrowed)).inc()
        metrics.fetched.inc(borrowed.num_blocks)
        metrics.corrupt.inc(borrowed.num_corrupt_blocks)
        if num_bytes:
            metrics.kv_bytes.labels(borrowed.transport).inc(num_bytes)
        if borrowed.error is not None:
            log.info(
                "kv_prefix_not_fetched",
                fence=describe(task.fence),
                source=task.source_address,
                blocks=borrowed.num_blocks,
                wanted=len(task.blocks),
                reason=str(borrowed.error) or "it takes longer than computing",
            )


def _outcome(task: ReceiveTask, borrowed: Borrowed) -> str:
    """Return the label of a fetch in the metrics."""
    match borrowed.error:
        case None if borrowed.num_corrupt_blocks:
            return "corrupt"
        case None:
            return "completed" if borrowed.num_blocks == len(task.blocks) else "shortened"
        case TimeoutError():
            return "timed_out"
        case PeerLostError():
            return "sender_lost"
        case _:
            return "refused"
