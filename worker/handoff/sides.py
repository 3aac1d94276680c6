"""The sides of the handoff that a worker has: each sends, and its kind decides whether it also receives.

Any may also read from other tiers, and fetch prefixes from other workers.
"""

from __future__ import annotations

from typing import Protocol

from engine.core.commands import Prefill
from engine.core.report import StepReport
from kvtransfer.receiving.receiver import Receiver
from kvtransfer.transports.nixl import NixlAgent
from kvtransfer.transports.shm import ShmServer
from scheduling.request import Fence
from worker.commands import ReceiveFrom, StartCommand
from worker.handoff.fetch_side import FetchSide
from worker.handoff.read_side import ReadSide
from worker.handoff.sender_side import SenderSide


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
    """Called on the event loop. Handles are the engine's."""

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
