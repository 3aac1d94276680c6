"""A receiver whose copies end when, and as, a test says."""

from __future__ import annotations

import asyncio
from typing import Any

from kvtransfer.receiver_handoff import Borrowed, ReceiveResult, ReceiveTask
from kvtransfer.receiving.receiver import Receiver
from tests.worker.handoff.test_sender_side import BytesPool


class ScriptedReceiver(Receiver):
    """Answers as told; a cancellation waits for its copies, as a real one does."""

    def __init__(self) -> None:
        self.pool = BytesPool()
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.copies_ended = asyncio.Event()
        self.tasks: list[ReceiveTask] = []

    async def receive(self, task: ReceiveTask) -> ReceiveResult:
        result: ReceiveResult = await self._answer(task)
        return result

    async def borrow(self, task: ReceiveTask) -> Borrowed:
        borrowed: Borrowed = await self._answer(task)
        return borrowed

    async def close(self) -> None:
        pass

    async def _answer(self, task: ReceiveTask) -> Any:
        self.tasks.append(task)
        try:
            return await self.answer
        except asyncio.CancelledError:
            await self.copies_ended.wait()
            raise
