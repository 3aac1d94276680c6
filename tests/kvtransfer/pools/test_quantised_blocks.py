"""Blocks of 8-bit KV travel as any others: with their scales, and to nobody who would read them otherwise."""

import pytest
import torch

from kvtransfer.errors import LayoutMismatchError
from kvtransfer.transports.transport import TransportMode
from tests.kvtransfer.conftest import BOTH, MakeReceiver, StartSender, fence_of, task_of, wrong_blocks

pytestmark = pytest.mark.integration


@BOTH
@pytest.mark.parametrize("stored", [torch.int8, torch.float8_e4m3fn], ids=str)
async def test_values_and_scales_arrive_byte_by_byte(
    mode: TransportMode, stored: torch.dtype, start_sender: StartSender, make_receiver: MakeReceiver
) -> None:
    name = str(stored).removeprefix("torch.")
    sender, receiver = await start_sender(stored=name), make_receiver(mode, stored=stored)
    task = task_of(sender, fence_of(), 5)
    sender.offer_all(task.fence, 5, token_id=42)
    result = await receiver.receive(task)
    assert result.num_verified_blocks == 5
    assert wrong_blocks(receiver, task) == []
    assert result.num_bytes == 5 * 4 * (2 * 16 * 2 * 64 + 2 * 2 * 16 * 4)


async def test_blocks_that_are_stored_otherwise_are_a_mismatch(
    start_sender: StartSender, make_receiver: MakeReceiver
) -> None:
    sender, receiver = await start_sender(stored="int8"), make_receiver(TransportMode.GRPC)
    task = task_of(sender, fence_of(), 5)
    sender.offer_all(task.fence, 5, token_id=42)
    with pytest.raises(LayoutMismatchError, match="block_bytes is 17408"):
        await receiver.receive(task)
