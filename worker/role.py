"""The difference between kinds of worker: the commands they accept, and their side of the handoff."""

from __future__ import annotations

from typing import Protocol

from engine.core.report import StepReport
from scheduling.request import Fence
from worker.streams.commands import StartCommand


class RoleSide(Protocol):
    """Called on the event loop. Handles are the engine's."""

    @property
    def start_commands(self) -> frozenset[type[StartCommand]]:
        """The ways in which a sequence can start here."""

    @property
    def can_offer(self) -> bool:
        """Whether running sequences can move from here to another worker."""

    def begin(self, command: StartCommand) -> None:
        """Prepare for a sequence that is about to enter the engine."""

    def offer(self, handle: int, fence: Fence) -> None:
        """Prepare for a part that is about to enter the engine: offer its blocks once they are reported."""

    def on_report(self, report: StepReport) -> None:
        """Take in a report, before it goes to routers."""

    def cancel(self, handle: int) -> None:
        """Break the fence of a sequence that is no longer wanted. Then the hub cancels it in the engine."""

    async def close(self) -> None:
        """Return when nothing runs any more."""
