"""Copies of one handoff that run side by side, of which one fails."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from kvtransfer.errors import TransportUnavailableError
from kvtransfer.pools.host_blocks import InPlace
from kvtransfer.receiver_handoff import BlockCopy
from kvtransfer.receiving.peers import Peer
from kvtransfer.receiving.receiver import Receiver
from kvtransfer.threads import run_to_end
from kvtransfer.transports.transport import TransportMode
from scheduling.request import Fence
from tests.kvtransfer.conftest import MakeReceiver, StartSender, offered
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration


class FirstFails:
    """Two copies: the first fails once the second writes; the second goes on writing until `may_end`."""

    transport = "scripted"

    def __init__(self, receiver: Receiver) -> None:
        self.writes = threading.Event()
        self.told_to_stop = threading.Event()
        self.may_end = threading.Event()
        self.has_ended = threading.Event()
        self._executor = receiver.executor

    async def read(self, fence: Fence, copies: Sequence[BlockCopy]) -> None:
        if copies[0].index == 0:
            await asyncio.to_thread(self.writes.wait, PATIENCE_S)
            raise TransportUnavailableError("scripted", "nowhere", "the first copy failed")
        await run_to_end(self._executor, self._write)

    def _write(self, stop: threading.Event) -> None:
        self.writes.set()
        if stop.wait(PATIENCE_S):
            self.told_to_stop.set()
        self.may_end.wait(PATIENCE_S)
        self.has_ended.set()

    async def close(self) -> None:
        pass


async def test_the_first_failure_returns_no_block_while_a_sibling_writes(
    start_sender: StartSender, make_receiver: MakeReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, receiver = await start_sender(), make_receiver(TransportMode.SHM)
    reader = FirstFails(receiver)

    async def scripted(*_: object) -> FirstFails:
        return reader

    monkeypatch.setattr(Peer, "reader", scripted)
    monkeypatch.setattr(InPlace, "batch_bytes", receiver.pool.block_bytes)
    task = offered(sender, 2)
    receiving = asyncio.create_task(receiver.receive(task))
    assert await asyncio.to_thread(reader.told_to_stop.wait, PATIENCE_S)
    await asyncio.wait({receiving}, timeout=0.2)
    assert not receiving.done(), "who waits for it may give the blocks to the next sequence"
    reader.may_end.set()
    with pytest.raises(TransportUnavailableError, match="the first copy failed"):
        await receiving
    assert reader.has_ended.is_set()
