"""Blocks read by NIXL, where it is there; and what is said where it is not."""

import asyncio
import importlib.util
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import NoReturn

import pytest
import torch

from engine.kv.kv_pool import BlockLayout, KVPool
from kvtransfer.errors import LayoutMismatchError, PeerLostError, TransportUnavailableError
from kvtransfer.manifest import NixlPool
from kvtransfer.receiver_handoff import BlockCopy
from kvtransfer.transports.nixl import PACKAGE, NixlAgent, NixlReader, is_installed
from kvtransfer.transports.transport import TransportMode, runs
from scheduling.request import Fence
from tests.kvtransfer.blocks import content, fill_block
from tests.kvtransfer.conftest import (
    MakeReceiver,
    StartSender,
    fence_of,
    offered,
    task_of,
    until,
    wrong_blocks,
)
from tests.kvtransfer.fake_nixl import FakeApi, fake_agent

FENCE = Fence("t", "r", 0, 0, 0, "source", "target")


def pool_of(num_blocks: int = 8) -> KVPool:
    return KVPool(BlockLayout(1, 4, 1, 8, torch.float32), num_blocks)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def reader_between(
    source: KVPool,
    target: KVPool,
    executor: ThreadPoolExecutor,
    on_lost: Callable[[], None] = lambda: None,
    **options: object,
) -> NixlReader:
    told = fake_agent("source", source).describe()
    return NixlReader(fake_agent("target", target, **options), told, executor, on_lost)


def api_of(reader: NixlReader) -> FakeApi:
    api = reader._agent.api
    assert isinstance(api, FakeApi)
    return api


async def test_blocks_are_read_to_where_they_are_wanted_neighbours_together(
    executor: ThreadPoolExecutor,
) -> None:
    source, target = pool_of(), pool_of()
    for block in range(8):
        fill_block(source, block)
    reader = reader_between(source, target, executor)
    pairs = [(1, 4), (2, 5), (3, 6), (7, 0)]
    await reader.read(FENCE, [BlockCopy(0, block, place, 0) for block, place in pairs])
    for block, place in pairs:
        assert bytes(target.block_bytes_view(place)) == content(block, target.block_bytes)
    assert not target.tensor[[1, 2, 3, 7]].any(), "a bystander was written to"
    assert (api_of(reader).num_descriptors, api_of(reader).under_way) == (2, {})
    await reader.close()
    assert not api_of(reader).known


def test_only_blocks_that_are_neighbours_on_both_sides_are_one_piece() -> None:
    places = [(5, 1), (6, 2), (8, 3), (9, 5), (10, 6)]
    copies = [BlockCopy(0, source, target, 0) for source, target in places]
    assert list(runs(copies)) == [(1, 5, 2), (3, 8, 1), (5, 9, 2)]
    assert list(runs([])) == []


async def test_a_block_that_the_sender_does_not_have_is_not_read(executor: ThreadPoolExecutor) -> None:
    reader = reader_between(pool_of(4), pool_of(), executor)
    with pytest.raises(LayoutMismatchError, match="sender_block is 4; accepted: 'under 4'"):
        await reader.read(FENCE, [BlockCopy(0, 4, 0, 0)])


async def test_a_read_that_fails_is_told_and_let_go_of(executor: ThreadPoolExecutor) -> None:
    source, target = pool_of(), pool_of()
    lost: list[str] = []
    reader = reader_between(source, target, executor, lambda: lost.append("source"), end="ERR")
    with pytest.raises(PeerLostError, match="a read ended as ERR"):
        await reader.read(FENCE, [BlockCopy(0, 1, 1, 0)])
    assert lost == ["source"]
    assert api_of(reader).under_way == {}
    api_of(reader).known.clear()
    with pytest.raises(PeerLostError, match="lost source"):
        await reader.read(FENCE, [BlockCopy(0, 1, 1, 0)])


async def test_a_cancelled_read_ends_when_nothing_is_written_any_more(executor: ThreadPoolExecutor) -> None:
    source, target = pool_of(), pool_of()
    reader = reader_between(source, target, executor)
    api = api_of(reader)
    api.held.clear()
    reading = asyncio.create_task(reader.read(FENCE, [BlockCopy(0, 1, 1, 0)]))
    await until(lambda: bool(api.under_way))
    reading.cancel()
    await asyncio.sleep(0)
    assert api.under_way
    assert not reading.done()
    api.held.set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert api.under_way == {}


async def test_a_sender_is_known_until_its_last_reader_closes(executor: ThreadPoolExecutor) -> None:
    source, target = fake_agent("source", pool_of()), fake_agent("target", pool_of())
    old, new = (NixlReader(target, source.describe(), executor, lambda: None) for _ in range(2))
    await old.close()
    await new.read(FENCE, [BlockCopy(0, 1, 1, 0)])
    await new.close()
    assert not api_of(new).known


async def test_a_sender_that_makes_no_sense_is_no_way_through(executor: ThreadPoolExecutor) -> None:
    with pytest.raises(TransportUnavailableError, match="transport nixl cannot reach the sender"):
        NixlReader(fake_agent("target", pool_of()), NixlPool(b"nonsense", 0, 1), executor, lambda: None)


def test_nixl_that_cannot_start_is_no_way_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise KeyError("UCX")

    broken = SimpleNamespace(nixl_agent=fail, nixl_agent_config=lambda **_: None)
    monkeypatch.setitem(sys.modules, "nixl_broken._api", broken)
    monkeypatch.setitem(sys.modules, "nixl_broken", SimpleNamespace(__path__=[]))
    monkeypatch.setattr("kvtransfer.transports.nixl.PACKAGE", "nixl_broken")
    with pytest.raises(TransportUnavailableError, match="UCX"):
        NixlAgent("name", pool_of())


def test_where_nixl_is_missing_an_agent_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtransfer.transports.nixl.PACKAGE", "nixl_of_nowhere")
    assert not is_installed()
    with pytest.raises(TransportUnavailableError, match="No module named 'nixl_of_nowhere'"):
        NixlAgent("name", pool_of())


@pytest.mark.integration
async def test_nixl_that_is_demanded_but_missing_is_an_error(
    start_sender: StartSender, make_receiver: MakeReceiver
) -> None:
    sender, receiver = await start_sender(), make_receiver(TransportMode.NIXL)
    task = offered(sender, 2)
    with pytest.raises(TransportUnavailableError, match="the sender has no NIXL"):
        await receiver.receive(task)


@pytest.mark.nixl
class TestWithNixl:
    """Between two processes, with NIXL itself."""

    async def test_every_byte_arrives_and_the_sender_may_free(
        self, start_sender: StartSender, make_receiver: MakeReceiver
    ) -> None:
        assert importlib.util.find_spec(PACKAGE), "run by `make test-nixl`"
        sender, receiver = await start_sender(nixl=True), make_receiver(TransportMode.NIXL)
        for request_id in ("first", "second"):
            task = task_of(sender, fence_of(request_id), 40, num_held=3)
            handle = sender.offer_all(task.fence, 40)
            result = await receiver.receive(task)
            assert (result.num_verified_blocks, result.num_bytes) == (40, 37 * receiver.pool.block_bytes)
            assert result.transport == "nixl"
            assert wrong_blocks(receiver, task) == [0, 1, 2]
            heard = await sender.hear()
            assert (heard["over"], heard["end"]) == (handle, "acknowledged")
            for block in range(64):
                receiver.pool.block_bytes_view(block)[:] = bytes(receiver.pool.block_bytes)

    async def test_a_block_damaged_after_its_checksum_was_taken_is_found(
        self, start_sender: StartSender, make_receiver: MakeReceiver
    ) -> None:
        sender, receiver = await start_sender(nixl=True), make_receiver(TransportMode.NIXL)
        task = offered(sender, 8)
        sender.tell(flip=[3])
        result = await receiver.receive(task)
        assert (result.num_verified_blocks, result.num_corrupt_blocks) == (3, 1)

    async def test_without_shared_memory_it_is_chosen_before_grpc(
        self, start_sender: StartSender, make_receiver: MakeReceiver
    ) -> None:
        sender, receiver = (
            await start_sender(nixl=True, shm=False),
            make_receiver(TransportMode.AUTO, nixl=True),
        )
        task = offered(sender, 8)
        assert (await receiver.receive(task)).transport == "nixl"
        assert wrong_blocks(receiver, task) == []

    async def test_a_killed_sender_ends_the_handoff(
        self, start_sender: StartSender, make_receiver: MakeReceiver
    ) -> None:
        sender, receiver = await start_sender(nixl=True), make_receiver(TransportMode.NIXL)
        task = task_of(sender, fence_of(), 6)
        handle = sender.begin(task.fence, 6)
        sender.tell(fill=[handle, 0, [0, 1, 2]])
        receiving = asyncio.create_task(receiver.receive(task))
        await until(lambda: len(wrong_blocks(receiver, task)) == 3)
        sender.process.kill()
        with pytest.raises(PeerLostError):
            await receiving
        replaced = await start_sender(nixl=True)
        task = offered(replaced, 4, fence_of("next"))
        assert (await receiver.receive(task)).transport == "nixl"
