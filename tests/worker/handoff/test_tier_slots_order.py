"""Copies between a pool on a device and page-locked memory begin when they may, and nothing waits in vain."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

from engine.kv import block_copies
from engine.kv.kv_pool import BlockLayout, KVPool
from kvtransfer.pools.host_blocks import checksum_blocks
from kvtransfer.pools.pool import BlockPool
from tests.engine.noted_order import Order, note_order
from worker.handoff import tier_slots
from worker.handoff.tier_slots import TierSlots

LAYOUT = BlockLayout(1, 4, 1, 8, torch.float32)
PIECE = 2
"""Blocks that the buffer on the device holds."""


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> Order:
    monkeypatch.setattr(block_copies, "BUFFER_BYTES", PIECE * LAYOUT.block_bytes)
    return note_order(monkeypatch)


def test_blocks_are_read_between_the_steps_that_write_them(order: Order) -> None:
    copies = TierSlots(KVPool(LAYOUT, 8), 4)
    filled = order.put("fill")
    copies.store([1, 2, 3], [0, 1, 2])
    overwritten = order.put("overwrite")
    gathers, buses = order.numbers("gather"), order.numbers("bus")
    assert (len(gathers), len(buses)) == (2, 2)
    assert all(order.is_behind(gather, filled) for gather in gathers)
    assert all(order.is_behind(overwritten, gather) for gather in gathers)
    assert order.is_behind(gathers[1], buses[0]), "the buffer is not gathered into while it is copied from"
    assert not order.is_behind(overwritten, buses[1]), (
        "steps wait until blocks are read, not until they arrive"
    )


def test_blocks_are_summed_once_they_have_arrived(order: Order, monkeypatch: pytest.MonkeyPatch) -> None:

    def checked(pool: BlockPool, blocks: Iterable[int]) -> list[int]:
        assert order.known.issuperset(order.numbers("bus"))
        return checksum_blocks(pool, blocks)

    monkeypatch.setattr(tier_slots, "checksum_blocks", checked)
    copies = TierSlots(KVPool(LAYOUT, 8), 4)
    sums = copies.store([1, 2, 3], [0, 1, 2])
    assert not order.known, "the thread of the steps does not wait"
    assert len(list(sums)) == 3


def test_a_read_is_over_when_its_blocks_are_there(order: Order) -> None:
    copies = TierSlots(KVPool(LAYOUT, 8), 4)
    copies.load([0, 1, 2], [5, 6, 7])
    scatters, buses = order.numbers("scatter"), order.numbers("bus")
    assert len(scatters) == len(buses) == 2
    assert all(order.is_behind(scatter, bus) for scatter, bus in zip(scatters, buses, strict=True))
    assert order.is_behind(buses[1], scatters[0]), "the buffer is not overwritten while it is scattered from"
    assert order.known.issuperset(scatters)


def test_reads_and_what_leaves_do_not_wait_for_each_other(order: Order) -> None:
    copies = TierSlots(KVPool(LAYOUT, 8), 4)
    copies.store([1], [0])
    (stored,) = order.numbers("bus")
    copies.load([1], [5])
    (loaded,) = order.numbers("scatter")
    assert not order.is_behind(loaded, stored)
    step = order.put("step")
    assert not order.is_behind(step, stored)
