"""A sender in another process, and the means to talk to both of its sides."""

import asyncio
import dataclasses
import itertools
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.kv.kv_pool import BlockLayout, KVPool
from kvtransfer.pools.host_blocks import InPlace
from kvtransfer.receiver_handoff import ReceiveTask
from kvtransfer.receiving.receiver import Receiver, ReceiverLimits
from kvtransfer.transports.nixl import NixlAgent, is_installed
from kvtransfer.transports.transport import TransportMode
from scheduling.request import Fence
from tests.forked import ForkedProcess, Zygote
from tests.kvtransfer.blocks import block_hash, content
from tests.patience import PATIENCE_S
from tests.zygote import Order
from tools.house.source_tree import ROOT

BLOCK_SIZE = 16
BOTH = pytest.mark.parametrize("mode", [TransportMode.SHM, TransportMode.GRPC])


class SenderProcess:
    """Speaks to `sender_process.py`."""

    def __init__(self, process: ForkedProcess, hello: dict[str, Any]) -> None:
        self.process = process
        self.address: str = hello["address"]
        self.shm_socket: str = hello["shm_socket"]
        self._handles = itertools.count(1)

    def tell(self, **commands: object) -> None:
        self.process.stdin.write(json.dumps(commands).encode() + b"\n")

    def begin(self, fence: Fence, num_blocks: int) -> int:
        handle = next(self._handles)
        self.tell(begin=[handle, dataclasses.asdict(fence), num_blocks])
        return handle

    def offer_all(self, fence: Fence, num_blocks: int, token_id: int = 7) -> int:
        handle = self.begin(fence, num_blocks)
        self.tell(fill=[handle, 0, list(range(num_blocks))])
        self.tell(commit=[handle, token_id])
        return handle

    async def hear(self) -> dict[str, Any]:
        line = await asyncio.to_thread(self.process.stdout.readline)
        assert line, "the sender process ended"
        heard: dict[str, Any] = json.loads(line)
        return heard

    async def kill(self) -> None:
        self.process.kill()
        await asyncio.to_thread(self.process.wait)


StartSender = Callable[..., Awaitable[SenderProcess]]
MakeReceiver = Callable[..., Receiver]


@pytest.fixture
async def start_sender(zygote: Zygote, tmp_path: Path) -> AsyncIterator[StartSender]:
    started: list[ForkedProcess] = []

    async def start(*, shm: bool = True, **options: object) -> SenderProcess:
        folder = {"shm_dir": tmp_path} if shm else {}
        flags = tuple(f"--{name.replace('_', '-')}={value}" for name, value in (folder | options).items())
        order = Order("tests.kvtransfer.sender_process", flags, str(ROOT), {"OMP_NUM_THREADS": "1"})
        with (tmp_path / f"sender-{len(started)}.log").open("wb") as log:
            process = zygote.fork(order, log)
        started.append(process)
        return SenderProcess(process, json.loads(await asyncio.to_thread(process.stdout.readline)))

    yield start
    for process in started:
        process.close()


@pytest.fixture
async def make_receiver() -> AsyncIterator[MakeReceiver]:
    made: list[Receiver] = []

    def make(
        mode: TransportMode,
        *,
        num_blocks: int = 64,
        layers: int = 4,
        stored: torch.dtype | None = None,
        fingerprint: str = "model",
        nixl: bool = False,
        limits: ReceiverLimits | None = None,
    ) -> Receiver:
        layout = BlockLayout(layers, BLOCK_SIZE, 2, 64, torch.float32, stored)
        pool = KVPool(layout, num_blocks)
        # The name is the process's: another one's agent of the same name would be taken for this one.
        has_nixl = nixl or (mode is TransportMode.NIXL and is_installed())
        agent = NixlAgent(f"receiver-{os.getpid()}-{len(made)}", pool) if has_nixl else None
        receiver = Receiver(InPlace(pool), BLOCK_SIZE, fingerprint, mode, limits, nixl=agent)
        made.append(receiver)
        return receiver

    yield make
    for receiver in made:
        await receiver.close()


Ends = tuple[SenderProcess, Receiver]


@pytest.fixture
async def ends(mode: TransportMode, start_sender: StartSender, make_receiver: MakeReceiver) -> Ends:
    return await start_sender(), make_receiver(mode)


@pytest.fixture
async def grpc_ends(start_sender: StartSender, make_receiver: MakeReceiver) -> Ends:
    return await start_sender(), make_receiver(TransportMode.GRPC)


def fence_of(request_id: str = "r", attempt: int = 0, **changes: Any) -> Fence:
    return dataclasses.replace(Fence("t", request_id, 0, attempt, 0, "source", "target"), **changes)


def task_of(sender: SenderProcess, fence: Fence, num_blocks: int, num_held: int = 0) -> ReceiveTask:
    """Places run the other way round than the sender's, so that a mix-up shows."""
    return ReceiveTask(
        fence=fence,
        source_address=sender.address,
        blocks=list(range(63, 63 - num_blocks, -1)),
        hashes=[block_hash(index) for index in range(num_blocks)],
        num_held=num_held,
    )


def offered(sender: SenderProcess, num_blocks: int, fence: Fence | None = None) -> ReceiveTask:
    """A task whose blocks the sender has computed and committed."""
    task = task_of(sender, fence or fence_of(), num_blocks)
    sender.offer_all(task.fence, num_blocks)
    return task


def wrong_blocks(receiver: Receiver, task: ReceiveTask) -> list[int]:
    """Indexes of blocks that do not hold what the sender's block at the same index held."""
    pool = receiver.pool
    return [
        index
        for index, block in enumerate(task.blocks)
        if bytes(pool.block_bytes_view(block)) != content(index, pool.block_bytes)
    ]


async def until(is_so: Callable[[], bool]) -> None:
    """Waits for a condition that another task brings about."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0.005)
