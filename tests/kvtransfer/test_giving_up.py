"""Handoffs that one side leaves, or ends: the other one notices, and nothing stays held for it."""

import asyncio
import dataclasses
import signal
import sys
from collections.abc import Sequence
from typing import Any

import grpc
import pytest

from baton.worker.v1 import kvtransfer_pb2 as pb
from baton.worker.v1 import kvtransfer_pb2_grpc as pb_grpc
from kvtransfer.errors import HandoffTimeoutError, PeerLostError, SenderAbortedError, SequenceFinishedError
from kvtransfer.manifest import FINISHED, Offer
from kvtransfer.pools.pool import BlockTarget
from kvtransfer.receiver_handoff import BlockCopy, ReceiveResult
from kvtransfer.receiving import receiver as receiver_module
from kvtransfer.receiving.receiver import Receiver, ReceiverLimits
from kvtransfer.transports.grpc import GrpcReader
from kvtransfer.transports.transport import TransportMode
from runtime.rpc.convert import fence_to_pb
from scheduling.request import Fence
from tests.kvtransfer.conftest import (
    BOTH,
    Ends,
    MakeReceiver,
    SenderProcess,
    StartSender,
    fence_of,
    offered,
    task_of,
    until,
    wrong_blocks,
)
from tests.patience import PATIENCE_S
from tests.vectors.link import Link
from tools.house.source_tree import ROOT

pytestmark = pytest.mark.integration


@BOTH
async def test_a_killed_sender_is_noticed_at_once(ends: Ends) -> None:
    sender, receiver = ends
    _, receiving = await half_received(sender, receiver)
    sender.process.kill()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(PeerLostError):
            await receiving
    await until(lambda: len(receiver.peers) == 0)


async def test_a_sender_that_dies_while_it_is_read_from_is_forgotten(
    grpc_ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, receiver = grpc_ends
    read = GrpcReader.read

    async def lose_sender_first(self: GrpcReader, fence: Fence, copies: Sequence[BlockCopy]) -> None:
        await sender.kill()
        await read(self, fence, copies)

    async def listen_once(self: receiver_module._Receive, stream: Any, target: BlockTarget) -> None:
        event = await self._next_event(stream)
        assert isinstance(event, Offer)
        self._batches.put_nowait(self._handoff.take(event))
        await asyncio.Event().wait()  # so that only the read finds out

    monkeypatch.setattr(GrpcReader, "read", lose_sender_first)
    monkeypatch.setattr(receiver_module._Receive, "_listen", listen_once)
    with pytest.raises(PeerLostError):
        await receiver.receive(offered(sender, 6))
    assert len(receiver.peers) == 0


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
async def test_a_sender_that_dies_after_its_commit_fails_no_receive(ends: Ends) -> None:
    sender, receiver = ends
    task = offered(sender, 6)
    acknowledge = receiver_module._Receive._acknowledge

    async def die_first(self: receiver_module._Receive) -> None:
        await sender.kill()
        await acknowledge(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(receiver_module._Receive, "_acknowledge", die_first)
        result = await receiver.receive(task)
    assert result.num_verified_blocks == 6
    assert wrong_blocks(receiver, task) == []


async def test_a_sender_that_was_out_of_reach_is_told_of_the_end_again(grpc_ends: Ends) -> None:
    sender, receiver = grpc_ends
    async with Link(sender.address) as link:
        task = dataclasses.replace(offered(sender, 6), source_address=link.address)
        acknowledge = receiver_module._Receive._acknowledge

        async def unheard(self: receiver_module._Receive) -> None:
            await link.stop()
            await acknowledge(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(receiver_module._Receive, "_acknowledge", unheard)
            result = await receiver.receive(task)
        await link.listen_again()
        heard = await sender.hear()
    assert (result.num_verified_blocks, heard["end"]) == (6, "acknowledged")


@BOTH
async def test_the_senders_abort_reaches_the_receiver(ends: Ends) -> None:
    sender, receiver = ends
    handle, receiving = await half_received(sender, receiver)
    sender.tell(abort=[handle, "finished"])
    with pytest.raises(SenderAbortedError, match="finished"):
        await receiving


async def test_a_sequence_that_ended_before_its_handoff_is_told_apart(grpc_ends: Ends) -> None:
    sender, receiver = grpc_ends
    task = task_of(sender, fence_of(), 4)
    handle = sender.begin(task.fence, 4)
    receiving = asyncio.create_task(receiver.receive(task))
    sender.tell(abort=[handle, FINISHED])
    with pytest.raises(SequenceFinishedError):
        await receiving
    with pytest.raises(SequenceFinishedError):
        await receiver.receive(task)


@BOTH
async def test_cancelling_a_receive_frees_the_sender_at_once(ends: Ends) -> None:
    sender, receiver = ends
    handle, receiving = await half_received(sender, receiver)
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


async def test_a_receiver_killed_in_prefill_frees_the_sender_at_once(
    start_sender: StartSender,
) -> None:
    sender = await start_sender()
    handle = sender.begin(fence_of(), 2)
    await killed_receiver(sender, until_event="manifest")
    heard = await sender.hear()
    assert (heard["over"], heard["end"]) == (handle, "given_up")
    assert "call broke" in heard["reason"]


async def test_a_receiver_killed_before_its_ack_frees_the_sender_later(
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


async def half_received(sender: SenderProcess, receiver: Receiver) -> tuple[int, asyncio.Task[ReceiveResult]]:
    """The sender's handle and the receipt of six blocks, three of which have come."""
    task = task_of(sender, fence_of(), 6)
    handle = sender.begin(task.fence, 6)
    sender.tell(fill=[handle, 0, [0, 1, 2]])
    receiving = asyncio.create_task(receiver.receive(task))
    await until(lambda: len(wrong_blocks(receiver, task)) == 3)
    return handle, receiving


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
