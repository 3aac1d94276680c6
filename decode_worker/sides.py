"""A decode worker fetches KV, and lets others have it when it leaves."""

from __future__ import annotations

from decode_worker.receiver_side import ReceiverSide
from engine.report import StepReport
from scheduling.request import Fence
from worker.commands import Dispatch, Task
from worker.sender_side import SenderSide


class DecodeSide:
    """Implements `worker.role.RoleSide`. `sending` is None where the pool cannot be offered."""

    tasks = frozenset({Task.RECEIVE, Task.DECODE})

    def __init__(self, receiving: ReceiverSide, sending: SenderSide | None) -> None:
        self._receiving = receiving
        self._sending = sending
        self.can_offer = sending is not None

    def begin(self, handle: int, dispatch: Dispatch) -> None:
        self._receiving.begin(handle, dispatch)

    def offer(self, handle: int, fence: Fence) -> None:
        assert self._sending is not None, "asked of a side without the task"
        self._sending.offer(handle, fence)

    def on_report(self, report: StepReport) -> None:
        self._receiving.on_report(report)
        if self._sending is not None:
            self._sending.on_report(report)

    def cancel(self, handle: int) -> None:
        self._receiving.cancel(handle)
        if self._sending is not None:
            self._sending.cancel(handle)

    async def close(self) -> None:
        await self._receiving.close()
        if self._sending is not None:
            await self._sending.close()
