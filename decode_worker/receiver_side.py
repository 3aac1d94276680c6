"""The decode worker's side of the handoff: fetches and verifies the blocks that its engine reserved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from engine.core.commands import Cancel, Command, KVArrived, KVFailed
from engine.core.report import Mark, Received, StepReport
from kvtransfer.errors import (
    HandoffTimeoutError,
    KVTransferError,
    PeerLostError,
    SenderAbortedError,
    SequenceFinishedError,
    TransportUnavailableError,
    describe,
)
from kvtransfer.receiver_handoff import ReceiveResult, ReceiveTask
from kvtransfer.receiving.receiver import Receiver
from worker.commands import ReceiveFrom
from worker.metrics import WorkerMetrics

log = structlog.get_logger()

OUTCOMES: tuple[tuple[type[KVTransferError], str], ...] = (
    (PeerLostError, "sender_lost"),
    (HandoffTimeoutError, "timed_out"),
    (SenderAbortedError, "sender_aborted"),
    (TransportUnavailableError, "no_transport"),
    (KVTransferError, "refused"),
)


@dataclass(slots=True)
class _Pending:
    """A receive that has not ended; `task` runs once the engine has reserved the blocks."""

    command: ReceiveFrom
    task: asyncio.Task[Command] | None = None


class ReceiverSide:
    """Called on the event loop. Handles are the engine's; the receiver belongs to the caller."""

    def __init__(self, receiver: Receiver, submit: Callable[[Command], None], metrics: WorkerMetrics) -> None:
        self._receiver = receiver
        self._submit = submit
        self._metrics = metrics
        self._pending: dict[int, _Pending] = {}

    def begin(self, command: ReceiveFrom) -> None:
        self._pending[command.spec.handle] = _Pending(command)

    def on_report(self, report: StepReport) -> None:
        for received in report.received:
            self._on_received(received, report.received_behind)
        for handle in report.freed:
            pending = self._pending.get(handle)
            if pending is not None and pending.task is None:
                del self._pending[handle]

    def cancel(self, handle: int) -> None:
        pending = self._pending.get(handle)
        if pending is None:
            return
        if pending.task is None:
            del self._pending[handle]  # if its blocks are reserved all the same, `_on_received` fails them
        else:
            pending.task.cancel()

    async def close(self) -> None:
        tasks = [pending.task for pending in self._pending.values() if pending.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_received(self, received: Received, behind: Mark | None) -> None:
        pending = self._pending.get(received.handle)
        if pending is None:
            self._submit(KVFailed(received.handle, "cancelled"))
            return
        task = ReceiveTask(
            fence=pending.command.spec.fence,
            source_address=pending.command.source_address,
            blocks=received.blocks,
            hashes=received.hashes,
            num_held=received.num_held,
            behind=behind,
        )
        pending.task = asyncio.create_task(self._receive(received.handle, task), name="kv-receive")
        pending.task.add_done_callback(lambda done: self._on_done(received.handle, done))

    async def _receive(self, handle: int, task: ReceiveTask) -> Command:
        """Return the command that ends this receive in the engine; nothing writes to its blocks any more."""
        try:
            result = await self._receiver.receive(task)
        except SequenceFinishedError:
            # Its router has the last token, or will see the prefill worker die: this is no failure.
            self._metrics.handoffs.labels("finished").inc()
            self._submit(Cancel(handle))
            return KVFailed(handle, "finished")
        except KVTransferError as error:
            outcome = next(name for kind, name in OUTCOMES if isinstance(error, kind))
            self._metrics.handoffs.labels(outcome).inc()
            log.warning("kv_handoff_failed", fence=describe(task.fence), outcome=outcome, reason=str(error))
            return KVFailed(handle, str(error))
        except Exception as error:
            self._metrics.loop_errors.labels("receive").inc()
            log.exception("kv_handoff_crashed", fence=describe(task.fence))
            return KVFailed(handle, f"{type(error).__name__}: {error}")
        self._observe(task, result)
        return KVArrived(handle, result.num_verified_blocks, result.first_tokens, result.exposed_s)

    def _on_done(self, handle: int, task: asyncio.Task[Command]) -> None:
        """End the receive in the engine exactly once, also if the task was cancelled before it began."""
        del self._pending[handle]
        if task.cancelled():
            self._metrics.handoffs.labels("cancelled").inc()
            self._submit(KVFailed(handle, "cancelled"))
        else:
            self._submit(task.result())

    def _observe(self, task: ReceiveTask, result: ReceiveResult) -> None:
        metrics = self._metrics
        metrics.handoffs.labels("corrupt" if result.num_corrupt_blocks else "completed").inc()
        metrics.handoff.observe(result.total_s)
        metrics.handoff_exposed.observe(result.exposed_s)
        metrics.kv_bytes.labels(result.transport).inc(result.num_bytes)
        metrics.corrupt.inc(result.num_corrupt_blocks)
        metrics.skipped.inc(task.num_held)
