"""Whole handoffs between two processes with real pools, over both transports."""

import asyncio
import dataclasses
import signal
import sys
from collections.abc import Callable
from typing import Any

import grpc
import pytest
import structlog

from baton.v1 import kvtransfer_pb2 as pb
from baton.v1 import kvtransfer_pb2_grpc as pb_grpc
from kvtransfer import receiver as receiver_module
from kvtransfer.errors import (
    HandoffTimeoutError,
    PeerLostError,
    SenderAbortedError,
    SequenceFinishedError,
    TransportUnavailableError,
)
from kvtransfer.manifest import FINISHED
from kvtransfer.receiver import Receiver, ReceiveResult, ReceiverLimits, ReceiveTask
from kvtransfer.transport import TransportMode
from services.convert import fence_to_pb
from tests.byte_flip_proxy import ByteFlipProxy
from tests.kvtransfer.blocks import content
from tests.kvtransfer.conftest import ROOT, MakeReceiver, SenderProcess, StartSender, fence_of, task_of

pytestmark = pytest.mark.integration
BOTH = pytest.mark.parametrize("mode", [TransportMode.SHM, TransportMode.GRPC])


def wrong_blocks(receiver: Receiver, task: ReceiveTask, first: int = 0) -> list[int]:
    """Indexes of blocks that do not hold what the sender's block at the same index held."""
    pool = receiver.pool
    return [
        index
        for index, block in enumerate(task.blocks)
        if index >= first and bytes(pool.block_bytes_view(block)) != content(index, pool.block_bytes)
    ]


async def until(is_so: Callable[[], bool]) -> None:
    """Waits for a condition that another task brings about."""
    while not is_so():
        await asyncio.sleep(0.005)


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
    assert (result.num_fetched_blocks, result.num_bytes) == (20, 20 * receiver.pool.block_bytes)
    assert result.transport == mode.value
    assert result.first_tokens.token_ids == [42]
    assert 0 < result.exposed_s <= result.total_s
    heard = await sender.hear()
    assert heard == {"over": handle, "end": "acknowledged", "reason": "", "num_corrupt_blocks": 0}


@BOTH
async def test_blocks_are_fetched_while_the_sender_still_computes(
    mode: TransportMode, start_sender: StartSender, make_receiver: MakeReceiver
) -> None:
    sender, receiver = await start_sender(), make_receiver(mode)
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
async def test_the_two_commands_may_come_in_any_order(
    mode: TransportMode, start_sender: StartSender, make_receiver: MakeReceiver
) -> None:
    sender, receiver = await start_sender(), make_receiver(mode)
    task = task_of(sender, fence_of(), 2)
    receiving = asyncio.create_task(receiver.receive(task))
    await asyncio.sleep(0)
    sender.offer_all(task.fence, 2)
    assert (await receiving).num_verified_blocks == 2


@BOTH
async def test_blocks_already_held_are_not_sent(
    mode: TransportMode, start_sender: StartSender, make_receiver: MakeReceiver
) -> None:
    sender, receiver = await start_sender(), make_receiver(mode)
    task = task_of(sender, fence_of(), 5, num_held=3)
    sender.offer_all(task.fence, 5)
    result = await receiver.receive(task)
    assert (result.num_fetched_blocks, result.num_verified_blocks) == (2, 5)
    assert wrong_blocks(receiver, task) == [0, 1, 2], "held blocks were written to"


@BOTH
async def test_a_block_damaged_after_its_checksum_was_taken_is_found(
    mode: TransportMode, start_sender: StartSender, make_receiver: MakeReceiver
) -> None:
    sender, receiver = await start_sender(), make_receiver(mode)
    task = task_of(sender, fence_of(), 8)
    sender.offer_all(task.fence, 8)
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
async def test_a_block_of_another_identity_is_not_used(
    mode: TransportMode, start_sender: StartSender, make_receiver: MakeReceiver
) -> None:
    sender, receiver = await start_sender(), make_receiver(mode)
    task = task_of(sender, fence_of(), 4)
    hashes = [*task.hashes[:2], b"x" * 16, task.hashes[3]]
    sender.offer_all(task.fence, 4)
    result = await receiver.receive(dataclasses.replace(task, hashes=hashes))
    assert (result.num_verified_blocks, result.num_corrupt_blocks) == (2, 1)


@BOTH
async def test_a_killed_sender_is_noticed_at_once(
    mode: TransportMode, start_sender: StartSender, make_receiver: MakeReceiver
) -> None:
    sender, receiver = await start_sender(), make_receiver(mode)
    task = task_of(sender, fence_of(), 6)
    handle = sender.begin(task.fence, 6)
    sender.tell(fill=[handle, 0, [0, 1, 2]])
    receiving = asyncio.create_task(receiver.receive(task))
    await until(lambda: len(wrong_blocks(receiver, task)) == 3)
    sender.process.kill()
    async with asyncio.timeout(5):
        with pytest.raises(PeerLostError):
            await receiving
    await until(lambda: len(receiver.peers) == 0)


async def test_a_stopped_sender_is_given_up(start_sender: StartSender, make_receiver: MakeReceiver) -> None:
    sender = await start_sender()
    receiver = make_receiver(TransportMode.SHM, limits=ReceiverLimits(no_progress_s=0.5))
    task = task_of(sender, fence_of(), 6)
    sender.begin(task.fence, 6)
    await receiver_knows(sender)
    sender.process.send_signal(signal.SIGSTOP)
    with pytest.raises(HandoffTimeoutError, match=r"no progress for 0\.5 s"):
        await receiver.receive(task)


async def test_a_sender_that_never_hears_of_the_handoff_is_given_up(
    start_sender: StartSender, make_receiver: MakeReceiver
) -> None:
    sender = await start_sender()
    receiver = make_receiver(TransportMode.SHM, limits=ReceiverLimits(no_progress_s=0.3))
    with pytest.raises(HandoffTimeoutError, match="while waiting for the sender to know the handoff"):
        await receiver.receive(task_of(sender, fence_of(), 2))


@BOTH
async def test_a_sender_that_dies_after_its_commit_is_not_needed(
    mode: TransportMode, start_sender: StartSender, make_receiver: MakeReceiver
) -> None:
    sender, receiver = await start_sender(), make_receiver(mode)
    task = task_of(sender, fence_of(), 6)
    sender.offer_all(task.fence, 6)
    acknowledge = receiver_module._Receive._acknowledge

    async def die_first(self: receiver_module._Receive) -> None:
        await sender.kill()
        await acknowledge(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(receiver_module._Receive, "_acknowledge", die_first)
        result = await receiver.receive(task)
    assert result.num_verified_blocks == 6
    assert wrong_blocks(receiver, task) == []


@BOTH
async def test_the_senders_abort_reaches_the_receiver(
    mode: TransportMode, start_sender: StartSender, make_receiver: MakeReceiver
) -> None:
    sender, receiver = await start_sender(), make_receiver(mode)
    task = task_of(sender, fence_of(), 6)
    handle = sender.begin(task.fence, 6)
    sender.tell(fill=[handle, 0, [0, 1, 2]])
    receiving = asyncio.create_task(receiver.receive(task))
    await until(lambda: len(wrong_blocks(receiver, task)) == 3)
    sender.tell(abort=[handle, "finished"])
    with pytest.raises(SenderAbortedError, match="finished"):
        await receiving


async def test_a_sequence_that_ended_before_its_handoff_is_told_apart(
    start_sender: StartSender, make_receiver: MakeReceiver
) -> None:
    sender, receiver = await start_sender(), make_receiver(TransportMode.GRPC)
    task = task_of(sender, fence_of(), 4)
    handle = sender.begin(task.fence, 4)
    receiving = asyncio.create_task(receiver.receive(task))
    sender.tell(abort=[handle, FINISHED])
    with pytest.raises(SequenceFinishedError):
        await receiving
    with pytest.raises(SequenceFinishedError):
        await receiver.receive(task)


@BOTH
async def test_cancelling_a_receive_frees_the_sender_at_once(
    mode: TransportMode, start_sender: StartSender, make_receiver: MakeReceiver
) -> None:
    sender, receiver = await start_sender(), make_receiver(mode)
    task = task_of(sender, fence_of(), 6)
    handle = sender.begin(task.fence, 6)
    sender.tell(fill=[handle, 0, [0, 1, 2]])
    receiving = asyncio.create_task(receiver.receive(task))
    await until(lambda: len(wrong_blocks(receiver, task)) == 3)
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    heard = await sender.hear()
    assert (heard["over"], heard["end"]) == (handle, "given_up")


async def test_a_receiver_that_never_comes_does_not_hold_the_blocks(start_sender: StartSender) -> None:
    sender = await start_sender(open_within_s=0.2)
    handle = sender.offer_all(fence_of(), 2)
    heard = await sender.hear()
    assert (heard["over"], heard["end"], heard["reason"]) == (handle, "expired", "never opened")


async def test_a_receiver_killed_during_the_prefill_frees_the_sender_at_once(
    start_sender: StartSender,
) -> None:
    sender = await start_sender()
    handle = sender.begin(fence_of(), 2)
    await killed_receiver(sender, until_event="manifest")
    heard = await sender.hear()
    assert (heard["over"], heard["end"]) == (handle, "given_up")
    assert "call broke" in heard["reason"]


async def test_a_receiver_killed_before_it_acknowledges_frees_the_sender_when_it_expires(
    start_sender: StartSender,
) -> None:
    sender = await start_sender(acknowledge_within_s=0.5)
    handle = sender.offer_all(fence_of(), 2)
    await killed_receiver(sender, until_event="commit")
    heard = await sender.hear()
    assert (heard["over"], heard["end"], heard["reason"]) == (handle, "expired", "not acknowledged in time")


async def test_an_acknowledgement_after_that_is_refused(start_sender: StartSender) -> None:
    sender = await start_sender(acknowledge_within_s=0.3)
    sender.offer_all(fence_of(), 2)
    async with grpc.aio.insecure_channel(sender.address) as channel:
        stub: pb_grpc.KVTransferServiceAsyncStub = pb_grpc.KVTransferServiceStub(channel)
        async for _ in stub.Open(pb.OpenRequest(fence=fence_to_pb(fence_of()), fingerprint="model")):
            pass
        assert (await sender.hear())["end"] == "expired"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Acknowledge(pb.AcknowledgeRequest(fence=fence_to_pb(fence_of())))
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "not acknowledged in time" in str(refused.value.details())


async def test_a_duplicate_acknowledgement_is_answered_like_the_first(
    start_sender: StartSender, make_receiver: MakeReceiver
) -> None:
    sender, receiver = await start_sender(), make_receiver(TransportMode.SHM)
    task = task_of(sender, fence_of(), 2)
    sender.offer_all(task.fence, 2)
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
    task = task_of(sender, fence_of(), 2)
    sender.offer_all(task.fence, 2)
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
            task = task_of(source, fence_of(request_id), 2)
            source.offer_all(task.fence, 2)
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
    task = task_of(sender, fence_of(), 2)
    sender.offer_all(task.fence, 2)
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


async def receiver_knows(sender: SenderProcess) -> None:
    """Everything told so far has been carried out."""
    sender.tell(count=[])
    assert "count" in await sender.hear()


async def killed_receiver(sender: SenderProcess, until_event: str) -> None:
    """A process that opens the handoff, hears the event named, and is killed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.kvtransfer.opening_process",
        sender.address,
        until_event,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"heard\n"
    process.kill()
    await process.wait()
