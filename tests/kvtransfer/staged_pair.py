"""A sender and a receiver whose blocks lie on a "device", which neither transports nor checksums see."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import torch

from engine.kv.kv_pool import BlockLayout, KVPool
from kvtransfer.errors import TransportUnavailableError
from kvtransfer.fence import FenceGuard
from kvtransfer.handoff import Outcome
from kvtransfer.manifest import Commit, CudaPool, CudaReach
from kvtransfer.pools.on_device import DeviceSource, DeviceTarget
from kvtransfer.pools.staging import ReceiveStaging, SendStaging
from kvtransfer.receiver_handoff import ReceiveTask
from kvtransfer.receiving.receiver import Receiver, ReceiverLimits, max_blocks_in_flight
from kvtransfer.sending.sender import Handoffs
from kvtransfer.sending.service import KVTransferService
from kvtransfer.transports.cuda_ipc import CudaTransport, MappedBlocks
from kvtransfer.transports.shm import ShmServer
from kvtransfer.transports.transport import TransportMode
from scheduling.columns import TokenColumns
from scheduling.request import Fence
from tests.kvtransfer.blocks import block_hash, content, fill_block
from tests.kvtransfer.conftest import until
from worker.handoff.cuda_ipc import PoolBlocks
from worker.handoff.staging import HostSlots

LAYOUT = BlockLayout(2, 16, 2, 64, torch.float32)
NUM_BLOCKS = 32


class GatedSlots(HostSlots):
    """Copies that stand still while their gate is closed, and fail when told to."""

    def __init__(self, pool: KVPool, num_slots: int) -> None:
        super().__init__(pool, num_slots)
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.begun: list[tuple[list[int], list[int], Any]] = []
        """(from, to, behind) of every copy."""

    def store(self, blocks: Sequence[int], slots: Sequence[int], behind: Any) -> None:
        self._wait(blocks, slots, behind)
        super().store(blocks, slots, None)

    def load(self, slots: Sequence[int], blocks: Sequence[int], behind: Any) -> None:
        self._wait(slots, blocks, behind)
        super().load(slots, blocks, None)

    def _wait(self, sources: Sequence[int], targets: Sequence[int], behind: Any) -> None:
        self.begun.append((list(sources), list(targets), behind))
        assert self.gate.wait(100)
        if self.error is not None:
            raise self.error


IN_REACH = CudaReach("here", ("GPU-1", "GPU-0"))
POOL = CudaPool("here", "GPU-0", b"handle", NUM_BLOCKS)


@dataclass
class Sharing:
    """Map the sender's device with a stand-in that reads the pool itself."""

    reach: CudaReach = IN_REACH
    pool: CudaPool = POOL
    map_error: str = ""
    """Why it cannot be mapped."""
    read_error: str = ""
    """Why it cannot be read."""
    fetched: list[list[tuple[int, int, int]]] = field(default_factory=list)
    mapped: list[CudaPool] = field(default_factory=list)
    num_closed: int = 0

    def road(self, source: KVPool, target: KVPool) -> CudaTransport:
        def mapped(pool: CudaPool) -> MappedBlocks:
            if self.map_error:
                raise TransportUnavailableError("cuda_ipc", pool.gpu, self.map_error)
            self.mapped.append(pool)
            return Mapped(self, source, target)

        return CudaTransport(self.reach, DeviceTarget(PoolBlocks(target)), mapped)


@dataclass
class Mapped:
    """A mapped device; its copies are real."""

    sharing: Sharing
    source: KVPool
    target: KVPool

    def fetch(self, stretches: Sequence[tuple[int, int, int]]) -> None:
        if self.sharing.read_error:
            raise RuntimeError(self.sharing.read_error)
        self.sharing.fetched.append(list(stretches))
        for place, block, length in stretches:
            self.target.tensor[place : place + length] = self.source.tensor[block : block + length]

    def close(self) -> None:
        self.sharing.num_closed += 1


class Waited:
    """A mark that knows who has waited for it."""

    def __init__(self) -> None:
        self.num_waits = 0

    def synchronize(self) -> None:
        self.num_waits += 1


class Pair:
    """Both ends in this process; the sender's device holds `content(place)` at every place."""

    def __init__(self, num_slots: int, mode: TransportMode, sharing: Sharing | None = None) -> None:
        self.source, self.target = KVPool(LAYOUT, NUM_BLOCKS), KVPool(LAYOUT, NUM_BLOCKS)
        for place in range(NUM_BLOCKS):
            fill_block(self.source, place)
        self.over: list[tuple[int, Outcome]] = []
        self.stores = GatedSlots(self.source, num_slots)
        self.sending = SendStaging(self.stores)
        self.guard = FenceGuard()
        self.on_device = None if sharing is None else DeviceSource(PoolBlocks(self.source))
        self.handoffs = Handoffs(
            "source",
            self.sending,
            self.guard,
            lambda *over: self.over.append(over),
            on_device=self.on_device,
        )
        limits = ReceiverLimits(no_progress_s=60.0, acknowledge_s=60.0)
        self.loads = GatedSlots(self.target, max_blocks_in_flight(LAYOUT.block_bytes, limits))
        self.receiving = ReceiveStaging(self.loads)
        self.road = None if sharing is None else sharing.road(self.source, self.target)
        self.receiver = Receiver(self.receiving, 16, "model", mode, limits, cuda=self.road)
        self.address = ""
        self.server: grpc.aio.Server

    def begin(self, handle: int, num_blocks: int) -> Fence:
        fence = Fence("t", f"r{handle}", 0, 0, 0, "source", "target")
        self.guard.admit(fence, (0,), 0.0)
        self.handoffs.begin(handle, fence, num_blocks)
        return fence

    def fill(self, handle: int, first_index: int, blocks: Sequence[int], behind: Any = None) -> None:
        hashes = [block_hash(index) for index in range(first_index, first_index + len(blocks))]
        self.handoffs.fill(handle, first_index, blocks, hashes, behind)

    def commit(self, handle: int) -> None:
        columns = TokenColumns(handles=[handle], choices=[0], indexes=[0], token_ids=[7])
        self.handoffs.commit(handle, Commit(16, columns))

    def offer_all(self, handle: int, blocks: Sequence[int]) -> Fence:
        fence = self.begin(handle, len(blocks))
        self.fill(handle, 0, blocks)
        self.commit(handle)
        return fence

    def task(self, fence: Fence, targets: Sequence[int], behind: Any = None) -> ReceiveTask:
        hashes = [block_hash(index) for index in range(len(targets))]
        return ReceiveTask(fence, self.address, list(targets), hashes, 0, behind)

    def differing(self, blocks: Sequence[int], targets: Sequence[int]) -> list[int]:
        """Positions at which the receiver's device does not hold what the sender's does."""
        pairs = enumerate(zip(blocks, targets, strict=True))
        size = LAYOUT.block_bytes
        return [
            index
            for index, (block, target) in pairs
            if bytes(self.target.block_bytes_view(target)) != content(block, size)
        ]

    async def until_nothing_is_held(self) -> None:
        """A copy that runs as its handoff ends keeps its slots for that long."""
        await until(lambda: len(self.sending._free) == self.stores.slots.num_blocks)
        await until(lambda: len(self.receiving._free) == self.loads.slots.num_blocks)
        assert len(self.handoffs) == 0


@asynccontextmanager
async def staged_pair(
    folder: Path, mode: TransportMode, num_slots: int = 16, sharing: Sharing | None = None
) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as cleanup:
        pair = Pair(num_slots, mode, sharing)
        pair.server = server = grpc.aio.server()
        shm = ShmServer(pair.sending.pool, "source", folder)
        await shm.start()
        cleanup.push_async_callback(shm.close)
        KVTransferService(
            pair.handoffs,
            pair.sending,
            fingerprint="model",
            block_size=16,
            shm_socket=str(shm.path),
            cuda=None if sharing is None else sharing.pool,
        ).add_to(server)
        pair.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        cleanup.push_async_callback(server.stop, 0)
        cleanup.callback(pair.handoffs.close)
        cleanup.push_async_callback(pair.receiver.close)
        cleanup.callback(pair.stores.gate.set)
        cleanup.callback(pair.loads.gate.set)
        yield pair


async def settle() -> None:
    """Let other tasks do everything they can do without waiting."""
    for _ in range(20):
        await asyncio.sleep(0)
