"""The sides of the handoff that a worker has: each sends, and its kind decides whether it also receives.

Any may also read from other tiers, and fetch prefixes from other workers. The sender's side, which all
workers have, turns the engine's reports into offers and commits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

import structlog

from engine.core.commands import BeginLoan, Command, Prefill, Release
from engine.core.report import Filled, Mark, StepReport
from kvtransfer.errors import describe
from kvtransfer.fence import FenceGuard
from kvtransfer.handoff import End, Outcome, SenderLimits
from kvtransfer.manifest import FINISHED, Commit
from kvtransfer.pools.pool import BlockSource
from kvtransfer.receiving.receiver import Receiver
from kvtransfer.sending.lending import Lending
from kvtransfer.sending.sender import Handoffs
from kvtransfer.transports.nixl import NixlAgent
from kvtransfer.transports.shm import ShmServer
from scheduling.columns import TokenColumns, take_rows
from scheduling.request import FailureReason, Fence, FinishReason, SequenceSpec
from worker.commands import ReceiveFrom, StartCommand
from worker.handoff.fetch_side import FetchSide
from worker.handoff.read_side import ReadSide
from worker.metrics import WorkerMetrics

log = structlog.get_logger()


class Receiving(Protocol):
    """The side that receives sequences. Handles are the engine's."""

    def begin(self, command: ReceiveFrom) -> None:
        """Prepare for a sequence that is about to enter the engine."""

    def on_report(self, report: StepReport) -> None:
        """Take in a report, before it goes to routers."""

    def cancel(self, handle: int) -> None:
        """Receive nothing more of a sequence."""

    async def close(self) -> None:
        """Return when nothing is received any more."""


class HandoffSides:
    """All sides of one worker. Called on the event loop. Handles are the engine's."""

    def __init__(
        self,
        start_commands: frozenset[type[StartCommand]],
        sending: SenderSide,
        receiving: Receiving | None = None,
        reading: ReadSide | None = None,
        fetching: FetchSide | None = None,
        receiver: Receiver | None = None,
        shm: ShmServer | None = None,
        nixl: NixlAgent | None = None,
    ) -> None:
        """`receiver` is what the sides receive by; by `shm` and `nixl` others read this worker's memory.

        These are closed behind the sides.
        """
        self._sending = sending
        self._receiving = receiving
        self._reading = reading
        self._fetching = fetching
        self._receiver = receiver
        self._shm = shm
        self._nixl = nixl
        self.start_commands = start_commands
        """The ways in which a sequence can start here."""
        self.can_offer = receiving is not None
        """Whether running sequences can move from here to another worker."""

    async def start(self) -> None:
        """Let processes on this host map the worker's memory."""
        if self._shm is not None:
            await self._shm.start()

    def begin(self, command: StartCommand) -> None:
        """Prepare for a sequence that is about to enter the engine."""
        if isinstance(command, Prefill):
            self._sending.begin(command.spec)
        elif isinstance(command, ReceiveFrom) and self._receiving is not None:
            self._receiving.begin(command)

    def offer(self, handle: int, fence: Fence) -> None:
        """Prepare for a part that is about to enter the engine: offer its blocks once they are reported."""
        self._sending.offer(handle, fence)

    def on_report(self, report: StepReport) -> None:
        """Take in a report, before it goes to routers."""
        if self._receiving is not None:
            self._receiving.on_report(report)
        if self._reading is not None:
            self._reading.on_report(report)
        if self._fetching is not None:
            self._fetching.on_report(report)
        self._sending.on_report(report)

    def cancel(self, handle: int) -> None:
        """Break the fence of a sequence that is no longer wanted. Then the hub cancels it in the engine."""
        if self._receiving is not None:
            self._receiving.cancel(handle)
        if self._reading is not None:
            self._reading.cancel(handle)
        if self._fetching is not None:
            self._fetching.cancel(handle)
        self._sending.cancel(handle)

    async def close(self) -> None:
        """Return when nothing runs any more."""
        if self._receiving is not None:
            await self._receiving.close()
        if self._fetching is not None:
            await self._fetching.close()
        if self._receiver is not None:
            await self._receiver.close()
        if self._reading is not None:
            self._reading.close()
        self._sending.close()
        if self._nixl is not None:
            self._nixl.close()
        if self._shm is not None:
            await self._shm.close()


class SenderSide:
    """The sender's side. Called on the event loop. Handles are the engine's."""

    def __init__(
        self,
        incarnation: str,
        source: BlockSource,
        block_size: int,
        guard: FenceGuard,
        *,
        submit: Callable[[Command], None],
        fail: Callable[[int, FailureReason, str], None],
        metrics: WorkerMetrics,
        on_device: BlockSource | None = None,
        limits: SenderLimits | None = None,
        new_handle: Callable[[], int] | None = None,
    ) -> None:
        """With `new_handle`, which draws a handle that no sequence has, this worker lends cached blocks."""
        self.handoffs = Handoffs(incarnation, source, guard, self._on_over, limits, on_device)
        self.lending: Lending | None = None
        if new_handle is not None:
            self.lending = Lending(incarnation, self.handoffs, new_handle, self._hold, self._release)
        self._block_size = block_size
        self._submit = submit
        self._fail = fail
        self._metrics = metrics
        self._specs: dict[int, SequenceSpec] = {}
        self._parts: dict[int, Fence] = {}
        """Fences of parts, which are choices of running sequences that go elsewhere. Parts have no spec."""

    def begin(self, spec: SequenceSpec) -> None:
        self._specs[spec.handle] = spec
        num_tokens = len(spec.prompt_token_ids) + len(spec.output_token_ids)
        self.handoffs.begin(spec.handle, spec.fence, -(-num_tokens // self._block_size))

    def offer(self, handle: int, fence: Fence) -> None:
        self._parts[handle] = fence

    def on_report(self, report: StepReport) -> None:
        for failure in report.failures:
            self.handoffs.abort(failure.handle, failure.message)
            if self.lending is not None:
                self.lending.on_refused(failure.handle)
        for filled in report.filled:
            if self.lending is not None and filled.handle in self.lending:
                self._on_lent(filled, report.filled_behind)
            elif filled.handle in self._parts:
                self._on_part(filled, report.filled_behind)
            else:
                self._on_filled(filled, report)
        for handle in report.freed:
            self.handoffs.abort(handle, "the sequence has ended")
            self._specs.pop(handle, None)
            self._parts.pop(handle, None)

    def cancel(self, handle: int) -> None:
        """Offer nothing more of a sequence: the engine is about to be told to free its blocks."""
        self.handoffs.abort(handle, "cancelled")
        # The handoff of a part begins with the report of its blocks, which may be on its way.
        self._parts.pop(handle, None)

    def close(self) -> None:
        self.handoffs.close()

    def _on_filled(self, filled: Filled, report: StepReport) -> None:
        spec = self._specs.get(filled.handle)
        if spec is None:
            return
        self._fill(filled, report.filled_behind)
        if not filled.complete:
            return
        first_tokens = _first_tokens(filled.handle, report.tokens)
        if len(first_tokens.token_ids) != len(spec.choices):
            return  # sampling failed: the engine's failure ends the handoff
        if all(reason != FinishReason.NONE for reason in first_tokens.finish_reasons):
            self.handoffs.abort(filled.handle, FINISHED)
        else:
            num_tokens = len(spec.prompt_token_ids) + len(spec.output_token_ids)
            self.handoffs.commit(filled.handle, Commit(num_tokens, first_tokens))

    def _on_part(self, filled: Filled, behind: Mark | None) -> None:
        """Offer and commit a part: all its blocks come in one report, and its router has its tokens."""
        self.handoffs.begin(filled.handle, self._parts[filled.handle], len(filled.blocks))
        self._fill(filled, behind)
        self.handoffs.commit(filled.handle, Commit(filled.num_tokens, TokenColumns()))

    def _on_lent(self, filled: Filled, behind: Mark | None) -> None:
        assert self.lending is not None, filled
        self._metrics.lent.inc(len(filled.blocks))
        self.lending.on_held(filled.handle, filled.blocks, filled.hashes, behind)

    def _hold(self, handle: int, hashes: tuple[bytes, ...], limit_s: float) -> None:
        self._submit(BeginLoan(handle, hashes, limit_s))

    def _release(self, handle: int) -> None:
        self._submit(Release(handle))

    def _fill(self, filled: Filled, behind: Mark | None) -> None:
        self.handoffs.fill(filled.handle, filled.first_index, filled.blocks, filled.hashes, behind)

    def _on_over(self, handle: int, outcome: Outcome) -> None:
        if self.lending is not None and handle in self.lending:
            self.lending.on_over(handle)
            return
        self._release(handle)
        self._metrics.handoffs.labels(outcome.end.value).inc()
        fence = self._parts[handle] if handle in self._parts else self._specs[handle].fence
        if outcome.end in (End.EXPIRED, End.GIVEN_UP):
            log.warning(
                "kv_handoff_over", fence=describe(fence), end=outcome.end.value, reason=outcome.reason
            )
            self._fail(handle, FailureReason.HANDOFF, outcome.reason)


def _first_tokens(handle: int, tokens: TokenColumns) -> TokenColumns:
    """Return the sequence's rows without text: the receiver's detokeniser makes the same text."""
    rows = [row for row, owner in enumerate(tokens.handles) if owner == handle]
    taken = take_rows(tokens, rows, [0] * len(rows))
    return dataclasses.replace(taken, text_lengths=[], text_utf8=b"", stop_rows=[], stop_places=[])
