"""Handoffs from one device's memory into another's. What stands for a device here is host memory that nothing
of the host's side looks at; CUDA's own part is tested where there is a GPU.
"""

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import grpc
import pytest

from baton.worker.v1 import kvtransfer_pb2 as pb
from kvtransfer.errors import PeerLostError, TransportUnavailableError
from kvtransfer.handoff import End
from kvtransfer.manifest import CudaReach
from kvtransfer.pools.on_device import DeviceSource
from kvtransfer.pools.pool import Publication
from kvtransfer.transports.cuda_ipc import is_in_reach
from kvtransfer.transports.transport import TransportMode
from runtime.rpc.convert import fence_to_pb
from tests.kvtransfer.conftest import until
from tests.kvtransfer.staged_pair import NUM_BLOCKS, POOL, Pair, Sharing, Waited, settle, staged_pair

pytestmark = pytest.mark.integration

BLOCKS = (9, 3, 4, 5, 31, 0)
TARGETS = (1, 7, 6, 20, 21, 30)
SHARED = pytest.mark.parametrize("mode", [TransportMode.AUTO, TransportMode.CUDA_IPC])


@SHARED
async def test_blocks_in_reach_go_past_the_hosts_memory(mode: TransportMode, tmp_path: Path) -> None:
    sharing = Sharing()
    async with staged_pair(tmp_path, mode, sharing=sharing) as pair:
        filled, allotted = Waited(), Waited()
        fence = pair.begin(1, len(BLOCKS))
        pair.fill(1, 0, BLOCKS, behind=filled)
        pair.commit(1)
        result = await pair.receiver.receive(pair.task(fence, TARGETS, behind=allotted))
        assert (filled.num_waits, allotted.num_waits) == (1, 1)
        assert (result.num_verified_blocks, result.num_corrupt_blocks) == (6, 0)
        assert result.transport == "cuda_ipc"
        assert pair.differing(BLOCKS, TARGETS) == []
        others = [block for block in range(NUM_BLOCKS) if block not in TARGETS]
        assert not pair.target.tensor[others].any(), "a bystander was written to"
        assert not pair.stores.begun, "blocks were staged for nobody"
        assert not pair.loads.begun
        assert sharing.fetched == [[(1, 9, 1), (7, 3, 1), (6, 4, 1), (20, 5, 1), (21, 31, 1), (30, 0, 1)]]
        await until(lambda: bool(pair.over))
        assert pair.over[0][1].end is End.ACKNOWLEDGED
        await pair.until_nothing_is_held()


@SHARED
async def test_later_handoffs_find_the_memory_mapped(mode: TransportMode, tmp_path: Path) -> None:
    sharing = Sharing()
    async with staged_pair(tmp_path, mode, sharing=sharing) as pair:
        for handle in (1, 2, 3):
            fence = pair.offer_all(handle, [handle])
            await pair.receiver.receive(pair.task(fence, [handle]))
        assert sharing.mapped == [sharing.pool]
        assert sharing.num_closed == 0
    assert sharing.num_closed == 1


async def test_blocks_are_offered_as_they_fill(tmp_path: Path) -> None:
    async with staged_pair(tmp_path, TransportMode.AUTO, sharing=Sharing()) as pair:
        fence = pair.begin(1, 6)
        pair.fill(1, 0, BLOCKS[:2])
        receiving = asyncio.create_task(pair.receiver.receive(pair.task(fence, TARGETS)))
        await until(lambda: pair.differing(BLOCKS, TARGETS) == [2, 3, 4, 5])
        pair.fill(1, 2, BLOCKS[2:])
        pair.commit(1)
        assert (await receiving).num_verified_blocks == 6
        assert pair.differing(BLOCKS, TARGETS) == []


OUT_OF_REACH: dict[str, Callable[[], Sharing]] = {
    "another host": lambda: Sharing(reach=CudaReach("there", ("GPU-0",))),
    "hosts that are not known": lambda: Sharing(
        pool=dataclasses.replace(POOL, host=""), reach=CudaReach("", ("GPU-0",))
    ),
    "another GPU": lambda: Sharing(reach=CudaReach("here", ("GPU-1",))),
}


@pytest.mark.parametrize("make", OUT_OF_REACH.values(), ids=OUT_OF_REACH)
async def test_blocks_out_of_reach_go_through_the_hosts_memory(
    make: Callable[[], Sharing], tmp_path: Path
) -> None:
    sharing = make()
    async with staged_pair(tmp_path, TransportMode.AUTO, sharing=sharing) as pair:
        result = await pair.receiver.receive(pair.task(pair.offer_all(1, BLOCKS), TARGETS))
        assert result.transport == "shm"
        assert pair.differing(BLOCKS, TARGETS) == []
        assert not sharing.mapped
        await pair.until_nothing_is_held()


async def test_who_insists_on_it_is_told_that_there_is_no_way(tmp_path: Path) -> None:
    sharing = Sharing(reach=CudaReach("there", ("GPU-0",)))
    async with staged_pair(tmp_path, TransportMode.CUDA_IPC, sharing=sharing) as pair:
        with pytest.raises(TransportUnavailableError, match="no GPU memory that this process reaches"):
            await pair.receiver.receive(pair.task(pair.offer_all(1, BLOCKS), TARGETS))
        await until(lambda: bool(pair.over))
        await pair.until_nothing_is_held()


BAD_ROADS: dict[str, Callable[[], Sharing]] = {
    "cannot be mapped": lambda: Sharing(map_error="the driver refuses"),
    "cannot be read": lambda: Sharing(read_error="the driver refuses"),
}


@pytest.mark.parametrize("make", BAD_ROADS.values(), ids=BAD_ROADS)
async def test_a_road_that_fails_is_left(make: Callable[[], Sharing], tmp_path: Path) -> None:
    async with staged_pair(tmp_path, TransportMode.AUTO, sharing=make()) as pair:
        with pytest.raises(TransportUnavailableError, match="the driver refuses"):
            await pair.receiver.receive(pair.task(pair.offer_all(1, BLOCKS), TARGETS))
        await until(lambda: bool(pair.over))
        assert pair.over[0][1].end is End.GIVEN_UP
        await _comes_through_the_host(pair, 2)


async def test_a_block_damaged_on_the_way_is_noticed_and_the_road_left(tmp_path: Path) -> None:
    async with staged_pair(tmp_path, TransportMode.AUTO, sharing=Sharing()) as pair:
        fence = pair.begin(1, 6)
        opened = pair.handoffs.open(fence, 0, reaches_device=True)
        pair.fill(1, 0, BLOCKS)
        await until(lambda: None not in opened.handoff._checksums)
        pair.source.block_bytes_view(4)[77] ^= 0x10
        opened.handoff._opened = False  # the receiver below opens it
        pair.commit(1)
        result = await pair.receiver.receive(pair.task(fence, TARGETS))
        assert (result.num_verified_blocks, result.num_corrupt_blocks) == (2, 1)
        pair.source.block_bytes_view(4)[77] ^= 0x10
        await _comes_through_the_host(pair, 2)


async def _comes_through_the_host(pair: Pair, handle: int) -> None:
    result = await pair.receiver.receive(pair.task(pair.offer_all(handle, BLOCKS), TARGETS))
    assert (result.transport, result.num_corrupt_blocks) == ("shm", 0)
    assert pair.differing(BLOCKS, TARGETS) == []


async def test_nothing_is_made_ready_for_a_receiver_that_never_comes(tmp_path: Path) -> None:
    async with staged_pair(tmp_path, TransportMode.AUTO, sharing=Sharing()) as pair:
        fence = pair.offer_all(1, BLOCKS)
        assert pair.handoffs.find(fence).source is None
        pair.handoffs.abort(1, "called off")
        assert [outcome.end for _, outcome in pair.over] == [End.ABORTED]
        await pair.until_nothing_is_held()


class GatedBlocks:
    """Blocks whose content is there when the gate opens, unless the device fails before."""

    def __init__(self) -> None:
        self.begun: list[object] = []
        """The work that `wait` was asked to wait for."""
        self.gate = threading.Event()
        self.error: Exception | None = None

    def wait(self, behind: object) -> None:
        self.begun.append(behind)
        assert self.gate.wait(100)
        if self.error is not None:
            raise self.error

    def checksums(self, blocks: Sequence[int]) -> list[int]:
        return [0 for _ in blocks]


@pytest.fixture
async def gated() -> AsyncIterator[tuple[DeviceSource, GatedBlocks]]:
    blocks = GatedBlocks()
    source = DeviceSource(blocks)
    yield source, blocks
    blocks.gate.set()
    source.close()


async def test_blocks_are_ready_when_the_device_has_come_so_far(
    gated: tuple[DeviceSource, GatedBlocks],
) -> None:
    source, blocks = gated
    ready: list[Sequence[int]] = []
    failed: list[BaseException] = []
    source.begin(1, 4)
    source.publish(1, Publication(0, [3, 4], "the first chunk", ready.append, failed.append))
    await until(lambda: blocks.begun == ["the first chunk"])
    await settle()
    assert ready == []
    blocks.gate.set()
    await until(lambda: ready == [[3, 4]])
    blocks.error = RuntimeError("an illegal address")
    source.publish(1, Publication(2, [5, 6], "the second one", ready.append, failed.append))
    await until(lambda: [str(error) for error in failed] == ["an illegal address"])
    assert ready == [[3, 4]]


async def test_nobody_is_told_of_blocks_whose_handoff_is_over(
    gated: tuple[DeviceSource, GatedBlocks],
) -> None:
    source, blocks = gated
    told: list[object] = []
    for handle in (1, 2):
        source.begin(handle, 1)
        source.publish(handle, Publication(0, [handle], None, told.append, told.append))
    source.end(1)
    blocks.gate.set()
    await until(lambda: [2] in told)
    assert told == [[2]]


async def test_blocks_on_a_device_are_not_fetched_from_host_memory(tmp_path: Path) -> None:
    async with staged_pair(tmp_path, TransportMode.AUTO, sharing=Sharing()) as pair:
        fence = pair.offer_all(1, BLOCKS)
        events = await _open(pair, pb.OpenRequest(fence=fence_to_pb(fence), fingerprint="model"))
        assert events[0].manifest.checksum_kind == pb.CHECKSUM_KIND_XXH3_64
        fence = pair.offer_all(2, BLOCKS)
        reach = pb.CudaReach(host="here", gpus=["GPU-0"])
        request = pb.OpenRequest(fence=fence_to_pb(fence), fingerprint="model", cuda_reach=reach)
        events = await _open(pair, request)
        manifest = events[0].manifest
        assert manifest.checksum_kind == pb.CHECKSUM_KIND_MULTILINEAR_64
        assert (manifest.cuda_ipc.gpu, manifest.cuda_ipc.handle) == ("GPU-0", b"handle")
        async with grpc.aio.insecure_channel(pair.address) as channel:
            fetch = channel.unary_stream(
                "/baton.worker.v1.KVTransferService/Fetch",
                request_serializer=pb.FetchRequest.SerializeToString,
                response_deserializer=pb.FetchResponse.FromString,
            )
            with pytest.raises(grpc.aio.AioRpcError, match="offered on a GPU") as caught:
                await fetch(pb.FetchRequest(fence=fence_to_pb(fence), indexes=[0])).read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def _open(pair: Pair, request: pb.OpenRequest) -> list[pb.OpenResponse]:
    """All that the sender says."""
    async with grpc.aio.insecure_channel(pair.address) as channel:
        call = channel.unary_stream(
            "/baton.worker.v1.KVTransferService/Open",
            request_serializer=pb.OpenRequest.SerializeToString,
            response_deserializer=pb.OpenResponse.FromString,
        )
        return [event async for event in call(request)]


async def test_the_memory_of_a_sender_that_ends_is_let_go_of(tmp_path: Path) -> None:
    """Although nobody asks for anything: whoever takes its place needs the memory."""
    sharing = Sharing()
    async with staged_pair(tmp_path, TransportMode.AUTO, sharing=sharing) as pair:
        await pair.receiver.receive(pair.task(pair.offer_all(1, BLOCKS), TARGETS))
        assert sharing.num_closed == 0
        await pair.server.stop(0)
        await until(lambda: sharing.num_closed == 1)
        with pytest.raises(PeerLostError):
            await pair.receiver.receive(pair.task(pair.offer_all(2, BLOCKS), TARGETS))


def test_a_pool_is_in_reach_of_its_host_and_gpu_alone() -> None:
    assert is_in_reach(POOL, CudaReach("here", ("GPU-1", "GPU-0")))
    assert not is_in_reach(POOL, CudaReach("there", ("GPU-0",)))
    assert not is_in_reach(POOL, CudaReach("here", ("GPU-1",)))
    assert not is_in_reach(dataclasses.replace(POOL, host=""), CudaReach("", ("GPU-0",)))
