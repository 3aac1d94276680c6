"""What differs between kinds of worker: which commands they take, and their side of the handoff."""

from __future__ import annotations

from typing import Protocol

from engine.core.report import StepReport
from scheduling.request import Fence
from worker.streams.commands import Dispatch, Task


class RoleSide(Protocol):
    """Called on the event loop. Handles are the engine's."""

    @property
    def tasks(self) -> frozenset[Task]:
        """What this kind of worker can be told to do."""

    @property
    def can_offer(self) -> bool:
        """Whether another worker can have what it runs."""

    def begin(self, handle: int, dispatch: Dispatch) -> None:
        """A sequence is about to enter the engine."""

    def offer(self, handle: int, fence: Fence) -> None:
        """A part is about to enter the engine: its blocks are to be had under this fence, once reported."""

    def on_report(self, report: StepReport) -> None:
        """Before the report goes to routers."""

    def cancel(self, handle: int) -> None:
        """The sequence is not wanted any more; the engine has been told, or will be told by this."""

    async def close(self) -> None:
        """Nothing runs any more when this returns."""
