"""Blocks in host memory come back as they went."""

from __future__ import annotations

import pytest
import torch

from engine.kv.swap_space import SwapSpace


def test_blocks_come_back_as_they_went_wherever_they_are_put() -> None:
    pool = torch.randn(6, 2, 3)
    before = pool.clone()
    swap = SwapSpace(pool, 4)
    slots = swap.store([5, 0, 2])
    assert swap.num_free == 1
    pool.zero_()
    swap.load(slots[:2], [1, 3])
    assert torch.equal(pool[1], before[5])
    assert torch.equal(pool[3], before[0])
    swap.load([], [])
    swap.check_integrity([slots])
    swap.release(slots)
    swap.check_integrity([])
    assert swap.num_free == 4


def test_its_speed_is_measured() -> None:
    swap = SwapSpace(torch.zeros(8, 1 << 16), 8)
    assumed = swap.bytes_per_s
    swap.load(swap.store(range(8)), range(8))
    assert swap.bytes_per_s > 0
    assert swap.bytes_per_s != assumed
    assert swap.block_bytes == 4 << 16


def test_a_slot_that_nobody_holds_is_noticed() -> None:
    swap = SwapSpace(torch.zeros(2, 1), 2)
    swap.store([0])
    with pytest.raises(AssertionError):
        swap.check_integrity([])


def test_less_than_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="num_slots is -1; accepted: 0 or more"):
        SwapSpace(torch.zeros(1, 1), -1)


@pytest.mark.gpu
def test_on_a_gpu_only_steps_and_copies_wait_for_each_other() -> None:
    pool = torch.zeros(64, 1 << 20, device="cuda")
    swap = SwapSpace(pool, 64)
    slow = torch.randn(8192, 8192, device="cuda")
    for content in (1.0, 2.0, 3.0):
        for _ in range(4):
            slow = slow @ slow.sigmoid() / 8192
        pool.fill_(content)
        slots = swap.store(range(32))
        pool.fill_(-1.0)
        swap.load(slots, range(32, 64))
        swap.release(slots)
        assert (pool[32:] == content).all()
        assert (pool[:32] == -1.0).all()
    assert swap.bytes_per_s > 4e9, "page-locked memory is faster than is assumed of ordinary memory"
