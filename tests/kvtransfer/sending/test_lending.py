"""Loans between two processes: what is there comes, verified; whatever fails, nothing stays held for it."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
from collections.abc import Sequence
from typing import Any

import pytest

from kvtransfer.errors import PeerLostError, SenderAbortedError, TransportUnavailableError
from kvtransfer.receiver_handoff import BlockCopy, Borrowed, ReceiveTask
from kvtransfer.receiving.receiver import Receiver
from kvtransfer.sending.lending import GRACE_S, MOST_LOANS
from kvtransfer.transports.grpc import GrpcReader
from kvtransfer.transports.transport import TransportMode
from scheduling.request import Fence
from tests.byte_flip_proxy import ByteFlipProxy
from tests.kvtransfer.conftest import (
    BOTH,
    Ends,
    MakeReceiver,
    SenderProcess,
    StartSender,
    fence_of,
    task_of,
    wrong_blocks,
)
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration

NUM_BLOCKS = 8
SOON_S, LATER_S = 0.3, 3.0
"""Limits of loans: one that is to run out, and one in which even a busy machine asks the sender first."""


def loan_of(sender: SenderProcess, limit_s: float = 8.0, number: int = 0, **changes: Any) -> ReceiveTask:
    task = task_of(sender, fence_of("prefix", number, router_id="target"), NUM_BLOCKS)
    return dataclasses.replace(task, borrows_s=limit_s, **changes)


async def asked(sender: SenderProcess) -> int:
    """Wait until the sender's engine is asked for blocks; return the handle of the loan."""
    async with asyncio.timeout(PATIENCE_S):
        heard = await sender.hear()
    assert heard["num_hashes"] == NUM_BLOCKS
    handle: int = heard["hold"]
    return handle


async def borrow(
    sender: SenderProcess, receiver: Receiver, task: ReceiveTask, num_held: int = NUM_BLOCKS
) -> tuple[int, Borrowed]:
    """Borrow blocks of which the sender's engine holds so many; return the handle and the outcome."""
    borrowing = asyncio.create_task(receiver.borrow(task))
    handle = await asked(sender)
    sender.tell(held=[handle, list(range(num_held))])
    async with asyncio.timeout(PATIENCE_S):
        return handle, await borrowing


async def released(sender: SenderProcess) -> int:
    """Wait until the sender's engine is told to let go of a loan."""
    async with asyncio.timeout(PATIENCE_S):
        heard = await sender.hear()
    handle: int = heard["released"]
    return handle


async def num_handoffs(sender: SenderProcess) -> int:
    sender.tell(count=[])
    count: int = (await sender.hear())["count"]
    return count


@BOTH
async def test_borrowed_blocks_arrive_and_are_given_back(
    mode: TransportMode, start_sender: StartSender, make_receiver: MakeReceiver
) -> None:
    sender, receiver = await start_sender(), make_receiver(mode)
    task = loan_of(sender)
    handle, borrowed = await borrow(sender, receiver, task)
    assert (borrowed.num_blocks, borrowed.num_corrupt_blocks, borrowed.error) == (NUM_BLOCKS, 0, None)
    assert borrowed.transport == mode.value
    assert wrong_blocks(receiver, task) == []
    assert await released(sender) == handle
    assert await num_handoffs(sender) == 0


@BOTH
async def test_fewer_blocks_than_wanted_are_no_failure(ends: Ends) -> None:
    sender, receiver = ends
    task = loan_of(sender)
    handle, borrowed = await borrow(sender, receiver, task, num_held=3)
    assert (borrowed.num_blocks, borrowed.error) == (3, None)
    assert wrong_blocks(receiver, task) == list(range(3, NUM_BLOCKS))
    assert await released(sender) == handle


async def test_evicted_blocks_are_refused(grpc_ends: Ends) -> None:
    sender, receiver = grpc_ends
    borrowing = asyncio.create_task(receiver.borrow(loan_of(sender)))
    sender.tell(refused=[await asked(sender)])
    borrowed = await borrowing
    assert borrowed.num_blocks == 0
    assert "none of the blocks is there" in str(borrowed.error)
    assert isinstance(borrowed.error, SenderAbortedError)
    assert await num_handoffs(sender) == 0


@BOTH
async def test_a_damaged_block_and_what_follows_are_not_used(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, receiver = ends
    checksums = receiver.target.checksums

    def misread(places: Sequence[int], stop: Any = None) -> list[int]:
        """Return checksums as if the bytes of block 4 had changed on the way."""
        found = checksums(places, stop)
        return [found ^ (place == task.blocks[4]) for place, found in zip(places, found, strict=True)]

    task = loan_of(sender)
    monkeypatch.setattr(receiver.target, "checksums", misread)
    handle, borrowed = await borrow(sender, receiver, task)
    assert (borrowed.num_blocks, borrowed.num_corrupt_blocks) == (4, 1)
    assert await released(sender) == handle


async def test_a_byte_that_flips_on_the_way_is_found(
    start_sender: StartSender, make_receiver: MakeReceiver
) -> None:
    sender, receiver = await start_sender(shm=False), make_receiver(TransportMode.GRPC)
    async with ByteFlipProxy(sender.address, flips=1) as proxy:
        task = loan_of(sender, source_address=proxy.address)
        handle, borrowed = await borrow(sender, receiver, task)
        assert proxy.num_flipped == 1
    assert borrowed.num_corrupt_blocks == 1
    assert borrowed.num_blocks == min(wrong_blocks(receiver, task))
    assert await released(sender) == handle


async def test_a_lender_that_is_asked_and_does_not_respond_is_given_up(grpc_ends: Ends) -> None:
    sender, receiver = grpc_ends
    borrowed = await receiver.borrow(loan_of(sender, LATER_S))
    assert borrowed.num_blocks == 0
    handle = await asked(sender)
    assert await released(sender) == handle
    sender.tell(held=[handle, [0, 1]])  # too late: nobody waits, and the engine was told to let go
    assert await num_handoffs(sender) == 0


async def test_a_lender_that_stands_still_costs_its_limit_alone(grpc_ends: Ends) -> None:
    sender, receiver = grpc_ends
    sender.tell(stop=[])
    borrowed = await receiver.borrow(loan_of(sender, SOON_S))
    assert isinstance(borrowed.error, TimeoutError)
    assert borrowed.wait_s >= SOON_S
    sender.process.send_signal(signal.SIGCONT)


async def test_a_lender_that_dies_while_it_is_read_leaves_what_has_come(
    start_sender: StartSender, make_receiver: MakeReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Blocks of a mebibyte, so that a batch has four of them.
    sender, receiver = await start_sender(layers=64), make_receiver(TransportMode.GRPC, layers=64)
    read, num_reads = GrpcReader.read, 0

    async def lose_sender(self: GrpcReader, fence: Fence, copies: Sequence[BlockCopy]) -> None:
        nonlocal num_reads
        num_reads += 1
        if num_reads > 1:
            await asyncio.sleep(0)
            while len(arrived) == 0:
                await asyncio.sleep(0.005)
            await sender.kill()
        await read(self, fence, copies)

    arrived: list[int] = []
    accept = receiver.target.accept

    async def note(places: Sequence[int], blocks: Sequence[int], behind: Any) -> None:
        await accept(places, blocks, behind)
        arrived.extend(blocks)

    monkeypatch.setattr(receiver.target, "accept", note)
    monkeypatch.setattr(GrpcReader, "read", lose_sender)
    task = loan_of(sender)
    _, borrowed = await borrow(sender, receiver, task)
    assert isinstance(borrowed.error, PeerLostError | TransportUnavailableError)
    assert 0 < borrowed.num_blocks < NUM_BLOCKS
    assert min(wrong_blocks(receiver, task)) >= borrowed.num_blocks


async def test_a_lender_that_is_gone_is_noticed(grpc_ends: Ends) -> None:
    sender, receiver = grpc_ends
    await sender.kill()
    borrowed = await receiver.borrow(loan_of(sender))
    assert borrowed.num_blocks == 0
    assert isinstance(borrowed.error, PeerLostError)


async def test_a_borrower_that_leaves_ends_the_loan(grpc_ends: Ends) -> None:
    sender, receiver = grpc_ends
    borrowing = asyncio.create_task(receiver.borrow(loan_of(sender)))
    handle = await asked(sender)
    borrowing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await borrowing
    assert await released(sender) == handle
    assert await num_handoffs(sender) == 0


async def test_the_loan_of_a_borrower_that_dies_ends_in_time(
    grpc_ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, receiver = grpc_ends
    monkeypatch.setattr(Receiver, "_abort_soon", lambda *_: None)  # as a killed one

    async def hang(self: GrpcReader, fence: Fence, copies: Sequence[BlockCopy]) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(GrpcReader, "read", hang)
    borrowing = asyncio.create_task(receiver.borrow(loan_of(sender, LATER_S)))
    handle = await asked(sender)
    sender.tell(held=[handle, list(range(NUM_BLOCKS))])
    assert (await borrowing).num_blocks == 0
    assert GRACE_S + LATER_S < PATIENCE_S
    assert await released(sender) == handle


async def test_loans_are_few_at_once(grpc_ends: Ends) -> None:
    sender, receiver = grpc_ends
    loans = [
        asyncio.create_task(receiver.borrow(loan_of(sender, number=number))) for number in range(MOST_LOANS)
    ]
    handles = [await asked(sender) for _ in loans]
    refused = await receiver.borrow(loan_of(sender, number=MOST_LOANS))
    assert "loans are under way" in str(refused.error)
    for handle in handles:
        sender.tell(refused=[handle])
    assert {(await loan).num_blocks for loan in loans} == {0}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"hashes": [], "blocks": []},
            "borrowing.block_hashes has 0 hashes; accepted: 1 to 65536 of 16 bytes",
        ),
        (
            {"hashes": [b"short"], "blocks": [1]},
            "borrowing.block_hashes has 1 hashes; accepted: 1 to 65536 of 16 bytes",
        ),
        ({"borrows_s": 11.0}, "borrowing.limit_ms is 11000; accepted: 1 to 10000"),
        ({"fence": fence_of(source_incarnation="before")}, "source_incarnation is 'before'"),
    ],
)
async def test_a_wrong_request_is_refused_with_its_field(
    grpc_ends: Ends, changes: dict[str, Any], sentence: str
) -> None:
    sender, receiver = grpc_ends
    borrowed = await receiver.borrow(dataclasses.replace(loan_of(sender), **changes))
    assert borrowed.num_blocks == 0
    assert sentence in str(borrowed.error)
    assert await num_handoffs(sender) == 0


async def test_a_fence_is_good_for_one_loan(grpc_ends: Ends) -> None:
    sender, receiver = grpc_ends
    task = loan_of(sender)
    handle, _ = await borrow(sender, receiver, task)
    assert await released(sender) == handle
    again = await receiver.borrow(task)
    assert "was used before; accepted: a fence for each loan" in str(again.error)


async def test_a_worker_that_does_not_lend_says_so(
    start_sender: StartSender, make_receiver: MakeReceiver
) -> None:
    sender, receiver = await start_sender(no_loans="yes"), make_receiver(TransportMode.GRPC)
    borrowed = await receiver.borrow(loan_of(sender))
    assert "accepted: by a worker that lends (--share-prefixes)" in str(borrowed.error)


async def test_another_model_is_refused(start_sender: StartSender, make_receiver: MakeReceiver) -> None:
    sender, receiver = await start_sender(), make_receiver(TransportMode.GRPC, fingerprint="another")
    borrowed = await receiver.borrow(loan_of(sender))
    assert "fingerprint is 'another'" in str(borrowed.error)
