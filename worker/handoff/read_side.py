"""Reads blocks that sequences wait for from host memory and the disk, for as long as that pays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from engine.core.commands import BlocksRead, Command
from engine.core.report import Mark, Reading, StepReport
from kvtransfer.tiers.reads import TierRead
from kvtransfer.tiers.tiers import Tiers


class ReadSide:
    """Called on the event loop. Handles are the engine's."""

    def __init__(self, tiers: Tiers, submit: Callable[[Command], None]) -> None:
        self._tiers = tiers
        self._submit = submit
        self._reads: dict[int, tuple[TierRead, asyncio.TimerHandle]] = {}

    def on_report(self, report: StepReport) -> None:
        for reading in report.reads:
            if reading.source is None:
                self._begin(reading, report.received_behind)

    def cancel(self, handle: int) -> None:
        """End a read, if one runs: nothing is written to the sequence's blocks any more."""
        found = self._reads.pop(handle, None)
        if found is not None:
            read, timer = found
            timer.cancel()
            self._submit(BlocksRead(handle, read.stop()))

    def close(self) -> None:
        for handle in list(self._reads):
            self.cancel(handle)

    def _begin(self, reading: Reading, behind: Mark | None) -> None:
        loop = asyncio.get_running_loop()
        end = partial(self.cancel, reading.handle)

        def end_soon() -> None:
            loop.call_soon_threadsafe(end)

        read = self._tiers.read(reading.blocks, reading.hashes, end_soon, behind)
        self._reads[reading.handle] = read, loop.call_later(reading.limit_s, end)
