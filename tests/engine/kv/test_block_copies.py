"""Blocks go to slots and back as they are, in pieces of any size, in the order asked for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.device import delay_steps, mark_steps
from engine.kv import block_copies
from engine.kv.block_copies import BlockCopies, runs

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.gpu),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("buffer_blocks", [1, 3, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.float8_e4m3fn])
def test_every_block_arrives_where_it_was_sent(
    device: str, buffer_blocks: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = torch.randint(0, 256, (12, 5, 7), dtype=torch.uint8)
    num_bytes = (
        content.view(dtype) if dtype.itemsize == 1 else content.repeat(1, 1, dtype.itemsize).view(dtype)
    )
    pool, slots = num_bytes.to(device), torch.zeros_like(num_bytes)
    block_bytes = pool[0].numel() * dtype.itemsize
    monkeypatch.setattr(block_copies, "BUFFER_BYTES", buffer_blocks * block_bytes)
    copies = BlockCopies(pool, slots)
    copies.store([11, 0, 4, 5, 9], [3, 4, 5, 0, 9], mark_steps(pool.device)).ended.synchronize()
    assert _bytes(slots[[3, 4, 5, 0, 9]]) == _bytes(num_bytes[[11, 0, 4, 5, 9]])
    assert not slots[[1, 2, 6, 7, 8, 10, 11]].view(torch.uint8).any(), "a bystander was written to"
    before = pool.cpu()
    copies.load([9, 3, 4], [1, 2, 7]).ended.synchronize()
    expected = before.clone()
    expected[[1, 2, 7]] = num_bytes[[9, 11, 0]]
    assert _bytes(pool) == _bytes(expected)


@pytest.mark.parametrize("buffer_blocks", [1, 3, 4])
def test_every_piece_begins_where_kernels_are_compiled_for(
    buffer_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For numbers of blocks that begin elsewhere, kernels would be compiled while a step waits."""
    offsets = set[int]()

    def note(pool: Tensor, ids: Tensor, _: Tensor) -> None:
        offsets.add(int(ids.storage_offset()) * ids.element_size() % 16)

    pool = torch.zeros(12, 8)
    monkeypatch.setattr(block_copies, "BUFFER_BYTES", buffer_blocks * pool[0].nbytes)
    monkeypatch.setattr(block_copies, "gather_blocks", note)
    monkeypatch.setattr(block_copies, "scatter_blocks", lambda source, pool, ids: note(pool, ids, source))
    copies = BlockCopies(pool, torch.zeros_like(pool))
    copies.store(range(11), range(11))
    copies.load(range(11), range(11))
    assert offsets == {0}


def test_a_copy_covers_a_run_of_neighbouring_slots() -> None:
    assert list(runs([4, 5, 6, 9, 2, 3])) == [(0, 4, 3), (3, 9, 1), (4, 2, 2)]
    assert list(runs([])) == []


@pytest.mark.gpu
def test_steps_and_copies_wait_for_each_other() -> None:
    """Both ways, without the thread waiting: the copies see what is written before, and not what is after."""
    device = torch.device("cuda")
    pool = torch.zeros(64, 1 << 20, device=device)
    copies = BlockCopies(pool, torch.zeros(64, 1 << 20))
    slow = torch.randn(8192, 8192, device=device)
    for round_number in range(3):
        for _ in range(4):
            slow = slow @ slow.sigmoid() / 8192
        pool.fill_(round_number + 1)
        stored = copies.store(range(64), range(64), mark_steps(device))
        delay_steps(device, stored.read)
        pool.fill_(-1)
        loaded = copies.load(range(64), range(64), mark_steps(device))
        delay_steps(device, loaded.ended)
        assert (pool == round_number + 1).all()


def _bytes(blocks: torch.Tensor) -> bytes:
    return blocks.cpu().contiguous().view(torch.uint8).numpy().tobytes()
