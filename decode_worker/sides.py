"""Both sides of a decode worker: it fetches KV, and hands it on when it leaves."""

from __future__ import annotations

from decode_worker.receiver_side import ReceiverSide
from engine.core.commands import Decode
from engine.core.report import StepReport
from scheduling.request import Fence
from worker.handoff.sender_side import SenderSide
from worker.streams.commands import ReceiveFrom, StartCommand


class DecodeSide:
    """Implements `worker.role.RoleSide`."""

    start_commands: frozenset[type[StartCommand]] = frozenset({ReceiveFrom, Decode})
    can_offer = True

    def __init__(self, receiving: ReceiverSide, sending: SenderSide) -> None:
        self._receiving = receiving
        self._sending = sending

    def begin(self, command: StartCommand) -> None:
        self._receiving.begin(command)

    def offer(self, handle: int, fence: Fence) -> None:
        self._sending.offer(handle, fence)

    def on_report(self, report: StepReport) -> None:
        self._receiving.on_report(report)
        self._sending.on_report(report)

    def cancel(self, handle: int) -> None:
        self._receiving.cancel(handle)
        self._sending.cancel(handle)

    async def close(self) -> None:
        await self._receiving.close()
        await self._sending.close()
