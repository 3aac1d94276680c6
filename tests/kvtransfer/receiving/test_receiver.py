"""Whole handoffs between two processes with real pools, over both transports."""

import asyncio
import dataclasses
from typing import Any

import grpc
import pytest
import structlog

from baton.worker.v1 import kvtransfer_pb2 as pb
from baton.worker.v1 import kvtransfer_pb2_grpc as pb_grpc
from kvtransfer.errors import SenderAbortedError, TransportUnavailableError
from kvtransfer.receiver_handoff import ReceiveResult
from kvtransfer.transports.transport import TransportMode
from runtime.rpc.convert import fence_to_pb
from tests.byte_flip_proxy import ByteFlipProxy
from tests.kvtransfer.conftest import (
    BOTH,
    Ends,
    MakeReceiver,
    StartSender,
    fence_of,
    offered,
    task_of,
    until,
    wrong_blocks,
)

pytestmark = pytest.mark.integration


@BOTH
async def test_every_byte_arrives_and_the_sender_may_free(
    mode: TransportMode, start_sender: StartSender, make_receiver: MakeReceiver
) -> None:
    sender, receiver = await start_sender(), make_receiver(mode)
    task = task_of(sender, fence_of(), 20)
    handle = sender.offer_all(task.fence, 20, token_id=42)
    result = await receiver.receive(task)
    assert wrong_blocks(receiver, task) == []
    assert (result.num_verified_blocks, result.num_corrupt_blocks) == (20, 0)
    assert result.num_bytes == 20 * receiver.pool.block_bytes
    assert result.transport == mode.value
    assert result.first_tokens.token_ids == [42]
    assert 0 < result.exposed_s <= result.total_s
    heard = await sender.hear()
    assert heard == {"over": handle, "end": "acknowledged", "reason": "", "num_corrupt_blocks": 0}


@BOTH
async def test_blocks_are_fetched_while_the_sender_still_computes(ends: Ends) -> None:
    sender, receiver = ends
    task = task_of(sender, fence_of(), 6)
    handle = sender.begin(task.fence, 6)
    receiving = asyncio.create_task(receiver.receive(task))
    sender.tell(fill=[handle, 0, [0, 1, 2]])
    await until(lambda: wrong_blocks(receiver, task) == [3, 4, 5])
    sender.tell(fill=[handle, 3, [3, 4, 5]])
    await until(lambda: wrong_blocks(receiver, task) == [])
    assert not receiving.done()
    sender.tell(commit=[handle, 1])
    result = await receiving
    assert result.num_verified_blocks == 6
    assert wrong_blocks(receiver, task) == []


@BOTH
async def test_the_two_commands_may_come_in_any_order(ends: Ends) -> None:
    sender, receiver = ends
    task = task_of(sender, fence_of(), 2)
    receiving = asyncio.create_task(receiver.receive(task))
    await asyncio.sleep(0)
    sender.offer_all(task.fence, 2)
    assert (await receiving).num_verified_blocks == 2


@BOTH
async def test_blocks_already_held_are_not_sent(ends: Ends) -> None:
    sender, receiver = ends
    task = task_of(sender, fence_of(), 5, num_held=3)
    sender.offer_all(task.fence, 5)
    result = await receiver.receive(task)
    assert (result.num_bytes, result.num_verified_blocks) == (2 * receiver.pool.block_bytes, 5)
    assert wrong_blocks(receiver, task) == [0, 1, 2], "held blocks were written to"


@BOTH
async def test_a_block_damaged_after_its_checksum_was_taken_is_found(ends: Ends) -> None:
    sender, receiver = ends
    task = offered(sender, 8)
    sender.tell(flip=[3])
    result = await receiver.receive(task)
    assert (result.num_verified_blocks, result.num_corrupt_blocks) == (3, 1)
    assert 3 in wrong_blocks(receiver, task)
    assert (await sender.hear())["num_corrupt_blocks"] == 1


async def test_a_byte_that_flips_on_the_wire_is_found(
    start_sender: StartSender, make_receiver: MakeReceiver
) -> None:
    sender, receiver = await start_sender(shm=False), make_receiver(TransportMode.GRPC)
    async with ByteFlipProxy(sender.address, flips=1) as proxy:
        task = dataclasses.replace(task_of(sender, fence_of(), 8), source_address=proxy.address)
        sender.offer_all(task.fence, 8)
        result = await receiver.receive(task)
        assert proxy.num_flipped == 1
    assert result.num_corrupt_blocks == 1
    assert result.num_verified_blocks == min(wrong_blocks(receiver, task))


@BOTH
async def test_a_block_of_another_identity_is_not_used(ends: Ends) -> None:
    sender, receiver = ends
    task = task_of(sender, fence_of(), 4)
    hashes = [*task.hashes[:2], b"x" * 16, task.hashes[3]]
    sender.offer_all(task.fence, 4)
    result = await receiver.receive(dataclasses.replace(task, hashes=hashes))
    assert (result.num_verified_blocks, result.num_corrupt_blocks) == (2, 1)


async def test_a_duplicate_acknowledgement_is_answered_like_the_first(
    start_sender: StartSender, make_receiver: MakeReceiver
) -> None:
    sender, receiver = await start_sender(), make_receiver(TransportMode.SHM)
    task = offered(sender, 2)
    await receiver.receive(task)
    async with grpc.aio.insecure_channel(sender.address) as channel:
        stub: pb_grpc.KVTransferServiceAsyncStub = pb_grpc.KVTransferServiceStub(channel)
        await stub.Acknowledge(pb.AcknowledgeRequest(fence=fence_to_pb(task.fence)))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"attempt": 0}, "session 0 attempt 1 has been seen"),
        ({"source_incarnation": "predecessor"}, "source_incarnation is 'predecessor'"),
        ({"target_incarnation": "impostor"}, "target_incarnation is 'impostor'"),
    ],
)
async def test_an_older_or_foreign_fence_is_refused_at_once(
    changes: dict[str, Any], expected: str, start_sender: StartSender, make_receiver: MakeReceiver
) -> None:
    sender, receiver = await start_sender(), make_receiver(TransportMode.AUTO)
    sender.offer_all(fence_of(attempt=1), 2)
    task = task_of(sender, fence_of(**{"attempt": 1, **changes}), 2)
    with pytest.raises(SenderAbortedError, match=expected):
        await receiver.receive(task)


async def test_another_fingerprint_is_refused(start_sender: StartSender, make_receiver: MakeReceiver) -> None:
    sender, receiver = await start_sender(), make_receiver(TransportMode.AUTO, fingerprint="another")
    task = offered(sender, 2)
    with pytest.raises(SenderAbortedError, match="fingerprint is 'another'"):
        await receiver.receive(task)


async def test_shared_memory_is_preferred_and_grpc_takes_its_place(
    start_sender: StartSender, make_receiver: MakeReceiver
) -> None:
    sender, remote = await start_sender(), await start_sender(shm=False)
    receiver = make_receiver(TransportMode.AUTO)
    results: list[ReceiveResult] = []
    with structlog.testing.capture_logs() as logs:
        for source, request_id in ((sender, "a"), (remote, "b"), (remote, "c")):
            task = offered(source, 2, fence_of(request_id))
            results.append(await receiver.receive(task))
            assert wrong_blocks(receiver, task) == []
    assert [result.transport for result in results] == ["shm", "grpc", "grpc"]
    assert [entry["event"] for entry in logs] == ["kv_transport_fallback"], (
        "said once per peer, never silently"
    )


async def test_shared_memory_that_is_demanded_but_missing_is_an_error(
    start_sender: StartSender, make_receiver: MakeReceiver
) -> None:
    sender, receiver = await start_sender(shm=False), make_receiver(TransportMode.SHM)
    task = offered(sender, 2)
    with pytest.raises(TransportUnavailableError, match="the sender offers no shared memory"):
        await receiver.receive(task)


async def test_one_connection_serves_all_handoffs_of_a_process(
    start_sender: StartSender, make_receiver: MakeReceiver
) -> None:
    sender, receiver = await start_sender(), make_receiver(TransportMode.SHM)
    tasks = [task_of(sender, fence_of(str(number)), 4) for number in range(8)]
    for task in tasks:
        sender.offer_all(task.fence, 4)
    await asyncio.gather(*(receiver.receive(task) for task in tasks))
    assert len(receiver.peers) == 1
    await sender.kill()
    await until(lambda: len(receiver.peers) == 0)


async def test_a_slow_receiver_does_not_make_the_sender_hoard(start_sender: StartSender) -> None:
    """128 MiB are asked for and not read: flow control, not memory, must hold them."""
    sender = await start_sender(shm=False, blocks=256, layers=32)
    fence = fence_of()
    handle = sender.begin(fence, 256)
    sender.tell(fill=[handle, 0, list(range(256))])
    sender.tell(commit=[handle, 1])
    async with grpc.aio.insecure_channel(sender.address) as channel:
        stub: pb_grpc.KVTransferServiceAsyncStub = pb_grpc.KVTransferServiceStub(channel)
        async for _ in stub.Open(pb.OpenRequest(fence=fence_to_pb(fence), fingerprint="model")):
            pass
        sender.tell(memory=[])
        before = (await sender.hear())["anonymous_kib"]
        call = stub.Fetch(pb.FetchRequest(fence=fence_to_pb(fence), indexes=range(256)))
        for _ in range(4):
            assert isinstance(await call.read(), pb.FetchResponse)
        for _ in range(20):
            sender.tell(memory=[])
            assert (await sender.hear())["anonymous_kib"] < before + 32 * 1024
        call.cancel()
