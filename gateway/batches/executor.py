"""Runs batches: takes one under a lease, runs its lines that have no result, and ends it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import ParamSpec, TypeVar

import structlog
from starlette.types import ASGIApp

from gateway.batches.calls import Line, Reply, call, is_done, parse_line
from gateway.batches.files import EXPIRIES, FileStore
from gateway.batches.records import LEASE_MS, BatchStore, Ended, Lease, Recorded, Status
from gateway.batches.window import WAITED_MS, Outcome, Window
from gateway.serving.generations import ID_HEADER
from gateway.serving.slo import CLASS_HEADER
from runtime.state.errors import StoreUnavailable

P = ParamSpec("P")
T = TypeVar("T")

MAX_BATCHES = 4
"""Batches that one gateway runs side by side; they share its window."""
POLL_S = 1.0
"""How soon a gateway sees a batch that another one entered or dropped: three small commands a poll."""
RENEW_S = LEASE_MS / 3000
AWAY_S = 0.5
ROOM_S = 5.0
"""How soon a result that found no room is tried again, or a line that the gateway may not run."""
MAX_ATTEMPTS = 3
"""How often a line runs in all if its generation fails, each time under another id."""
UNRUN_LINES = 256
"""Lines recorded in one step when a batch is cancelled or expires."""
_COME_BACK = frozenset({401, 403, 429, 503})
"""Nothing is wrong with the line: it is run again until the batch's time is over."""
_FAILED = frozenset({409, 500})

log = structlog.get_logger()


class LeaseLost(Exception):
    """Another gateway runs the batch, or Redis has lost it."""


class Executor:
    """Runs batches of any tenant through the gateway's own application, until cancelled.

    `fleet_of` returns what stands for the fleet of a model's name.
    """

    def __init__(
        self,
        app: ASGIApp,
        fleet_of: Callable[[str], object],
        batches: BatchStore,
        files: FileStore,
        max_lines: int,
        wake: asyncio.Event,
    ) -> None:
        self._app = app
        self._batches = batches
        self._files = files
        self._fleet_of = fleet_of
        self._max_lines = max_lines
        self._windows = defaultdict[object, Window](lambda: Window(max_lines))
        """By fleet: one that is away or full leaves the lines of others their room."""
        self._running: set[asyncio.Task[None]] = set()
        self._wake = wake
        """Set when a batch may have become free."""

    async def run(self) -> None:
        """Take batches, run them, and remove what has expired."""
        try:
            while True:
                self._wake.clear()
                try:
                    await self._sweep()
                    await self._take()
                except StoreUnavailable as error:
                    log.warning("batches_wait_for_redis", reason=error.reason)
                except Exception:  # one bad batch keeps no others waiting: the next look may find them
                    log.exception("batches_look_failed")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await self._wake.wait()
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    async def _take(self) -> None:
        while len(self._running) < MAX_BATCHES and (lease := await self._batches.take()) is not None:
            task = asyncio.create_task(self._guarded(lease))
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._wake.set()

    async def _sweep(self) -> None:
        """Remove the file or batch that expired first, if any has."""
        found = await self._files.redis.run("list_due", [EXPIRIES], [16, ""])
        for name in (member.decode() for member in found):
            if name.startswith("batch_"):
                await self._batches.forget(name)
            else:
                await self._files.remove_expired(name)

    async def _guarded(self, lease: Lease) -> None:
        name = lease.batch.id
        log.info("batch_taken", batch=name, fence=lease.fence, lines=lease.batch.total)
        try:
            status = await self._run(lease)
        except LeaseLost:
            log.warning("batch_lost", batch=name, fence=lease.fence)
        except asyncio.CancelledError:
            with contextlib.suppress(StoreUnavailable):
                await self._batches.give_back(lease)
            raise
        except Exception:  # a bug ends this run of the batch only: its lease expires, and it is taken again
            log.exception("batch_failed", batch=name, fence=lease.fence)
        else:
            log.info("batch_ended", batch=name, fence=lease.fence, status=status.value)

    async def _run(self, lease: Lease) -> Status:
        """Run the batch to its end. Raises `LeaseLost`.

        Redis may lose results that it has acknowledged. Their lines are missed at the end, and run again.
        """
        while True:
            status = await self._run_lines(lease)
            if status is Status.COMPLETED and not await patiently(self._batches.finalize, lease):
                status = Status.CANCELLED
            if status is not Status.COMPLETED:
                await self._record_unrun(lease, status)
            ended = await patiently(self._batches.end, lease, status)
            if ended is Ended.DONE:
                return status
            if ended is Ended.LEASE_LOST:
                raise LeaseLost
            log.warning("batch_results_lost", batch=lease.batch.id, fence=lease.fence)

    async def _run_lines(self, lease: Lease) -> Status:
        """Run lines until all have a result. Return the status in which the batch has to end."""
        work = asyncio.create_task(self._all_lines(lease))
        try:
            while True:
                status = await self._renew(lease)
                if status is not None:
                    return status
                await asyncio.wait({work}, timeout=RENEW_S)
                if work.done():
                    work.result()
                    return Status.COMPLETED
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _renew(self, lease: Lease) -> Status | None:
        """Keep the lease; return the status if the batch has to end. Without Redis there is nothing to do."""
        try:
            found = await self._batches.renew(lease)
        except StoreUnavailable:
            return None  # the fence protects results, whoever holds the lease when Redis is back
        if found is None:
            raise LeaseLost
        status, left_s = found
        if status is Status.CANCELLING:
            return Status.CANCELLED
        return Status.EXPIRED if left_s <= 0 else None

    async def _all_lines(self, lease: Lease) -> None:
        # Bounds the lines in memory: those that wait to be sent again are not in the window.
        begun = asyncio.Semaphore(self._max_lines)
        try:
            async with asyncio.TaskGroup() as group:
                async for line in self._lines(lease):
                    await begun.acquire()
                    task = group.create_task(self._run_line(lease, line))
                    task.add_done_callback(lambda _: begun.release())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _lines(self, lease: Lease) -> AsyncGenerator[Line, None]:
        """Yield the lines that have no result, also those that the input has no longer."""
        batch = lease.batch
        done = await patiently(self._batches.done, batch.id)
        number = place = 0
        while pieces := await patiently(self._files.pieces, batch.input_file_id, place):
            place += len(pieces)
            for piece in pieces:
                for data in filter(bytes.strip, piece.split(b"\n")):
                    if not is_done(done, number):
                        yield parse_line(number, data)
                    number += 1
        for lacking in range(number, batch.total):
            if not is_done(done, lacking):
                yield parse_line(lacking, b"")

    async def _run_line(self, lease: Lease, line: Line) -> None:
        """Run a line until it has a result, and record that."""
        if line.problem:
            await self._record(lease, {line.number: line.unreadable_result(lease.batch.id)}, failed=True)
            return
        attempt = 0
        while True:
            window = self._windows[self._fleet_of(line.body.get("model") or "")]
            outcome: Outcome | None = None
            request_id = line.request_id(lease.batch.id, attempt)
            entered = await window.enter()
            try:
                headers = {ID_HEADER: request_id, CLASS_HEADER: "batch", "content-type": "application/json"}
                reply = await call(self._app, line.url, line.body, headers, lease.batch.tenant)
                outcome = _outcome(reply)
            finally:
                window.leave(entered, outcome)
            if reply.status in _FAILED:
                attempt += 1
            if reply.status not in _COME_BACK and not (reply.status in _FAILED and attempt < MAX_ATTEMPTS):
                break
            log.debug("line_waits", batch=lease.batch.id, line=line.number, status=reply.status)
            await asyncio.sleep(ROOM_S if reply.status in {401, 403} else reply.retry_after_s)
        data = line.reply_result(lease.batch.id, request_id, reply)
        await self._record(lease, {line.number: data}, failed=reply.status != 200)

    async def _record(
        self, lease: Lease, results: dict[int, bytes], *, failed: bool, needs_room: bool = True
    ) -> None:
        """Record results, and wait for room if they need it. Raises `LeaseLost`."""
        while True:
            recorded = await patiently(
                self._batches.record, lease, results, failed=failed, needs_room=needs_room
            )
            if recorded is Recorded.LEASE_LOST:
                raise LeaseLost
            if recorded is Recorded.DONE:
                return
            log.warning("batch_waits_for_room", batch=lease.batch.id)
            await asyncio.sleep(ROOM_S)

    async def _record_unrun(self, lease: Lease, status: Status) -> None:
        """Record that lines were not run, whatever room there is: a batch must be able to end."""
        results: dict[int, bytes] = {}
        async for line in self._lines(lease):
            results[line.number] = line.unrun_result(lease.batch.id, status)
            if len(results) == UNRUN_LINES:
                await self._record(lease, results, failed=True, needs_room=False)
                await self._renew(lease)
                results = {}
        if results:
            await self._record(lease, results, failed=True, needs_room=False)


def _outcome(reply: Reply) -> Outcome | None:
    if reply.status in {429, 503}:
        is_tenants_own = reply.body.get("error", {}).get("code") == "budget_exceeded"
        return None if is_tenants_own else Outcome.REFUSED
    if reply.status != 200:
        return None
    waited_ms = reply.body.get("baton", {}).get("time_split", {}).get("queue_ms", 0.0)
    return Outcome.WAITED if waited_ms > WAITED_MS else Outcome.ROOM


async def patiently(use: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of a use of Redis, after waiting for as long as Redis is away."""
    while True:
        try:
            return await use(*args, **kwargs)
        except StoreUnavailable:
            await asyncio.sleep(AWAY_S)
