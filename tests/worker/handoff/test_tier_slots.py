"""Blocks of a pool on a device go to page-locked memory and back in the order of the steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pytest
import torch

from engine.device import mark_steps
from engine.kv import block_copies
from engine.kv.kv_pool import BlockLayout, KVPool
from kvtransfer.pools.host_blocks import checksum
from kvtransfer.tiers.copies import InPlaceCopies
from kvtransfer.tiers.tiers import Tiers
from tests.engine.no_waiting import no_waiting
from tests.kvtransfer.tiers.driving import name_of, read_to_end
from tests.patience import PATIENCE_S
from worker.handoff.tier_slots import TierSlots, copies_for

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
LAYOUTS = [
    BlockLayout(2, 16, 2, 64, torch.bfloat16),
    BlockLayout(2, 16, 2, 64, torch.bfloat16, stored=torch.int8),
]
NUM_BLOCKS = 8


def random_pool(layout: BlockLayout, device: str) -> KVPool:
    pool = KVPool(layout, NUM_BLOCKS, torch.device(device))
    words = pool.tensor.view(torch.uint8)
    words.copy_(torch.randint(0, 256, words.shape, dtype=torch.uint8))
    return pool


def bytes_of(pool: KVPool, block: int) -> bytes:
    return pool.tensor[block].flatten().view(torch.uint8).cpu().numpy().tobytes()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS, ids=["as computed", "8 bits"])
def test_blocks_go_to_slots_and_back_with_their_checksums(device: str, layout: BlockLayout) -> None:
    pool = random_pool(layout, device)
    before = [bytes_of(pool, block) for block in range(NUM_BLOCKS)]
    copies = TierSlots(pool, 4)
    sums = copies.store([6, 1, 3], [0, 3, 1])
    pool.tensor[[6, 1, 3]] = 0
    assert list(sums) == [checksum(before[block]) for block in (6, 1, 3)]
    copies.load([3, 0], [7, 1])
    assert [bytes_of(pool, block) for block in (7, 1)] == [before[1], before[6]]
    assert [bytes_of(pool, block) for block in (0, 2, 4, 5)] == [before[block] for block in (0, 2, 4, 5)]


def test_a_pool_in_host_memory_is_copied_from_where_it_is() -> None:
    here, elsewhere = KVPool(LAYOUTS[0], 4), KVPool(LAYOUTS[0], 4, torch.device("meta"))
    assert isinstance(copies_for(here)(2), InPlaceCopies)
    assert isinstance(copies_for(elsewhere)(2), TierSlots)


def test_neighbours_go_in_one_copy_in_whatever_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence's last block leaves first and is read last, and slots are taken again in any order."""
    real, num_copies = block_copies.runs, 0

    def count(slots: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        nonlocal num_copies
        for run in real(slots):
            num_copies += 1
            yield run

    monkeypatch.setattr(block_copies, "runs", count)
    pool = random_pool(LAYOUTS[0], "cpu")
    before = [bytes_of(pool, block) for block in range(NUM_BLOCKS)]
    copies = TierSlots(pool, 4)
    sums = copies.store([6, 1, 3, 0], [3, 2, 1, 0])
    assert num_copies == 1
    assert list(sums) == [checksum(before[block]) for block in (6, 1, 3, 0)]
    copies.load([3, 2, 1], [4, 5, 7])
    assert num_copies == 2
    assert [bytes_of(pool, block) for block in (4, 5, 7)] == [before[block] for block in (6, 1, 3)]


@pytest.mark.gpu
def test_steps_and_copies_wait_for_each_other_on_the_gpu() -> None:
    """Blocks are filled by slow steps, leave, get other content and come back into blocks in use before."""
    device = torch.device("cuda")
    pool = KVPool(BlockLayout(2, 16, 8, 128, torch.float32), 64, device)
    tiers = Tiers(pool, 32 * pool.block_bytes, new_copies=partial(TierSlots, pool))
    tiers.start()
    slow = torch.randn(8192, 8192, device=device)
    for content in (1.0, 2.0, 3.0):
        names = [name_of(int(content) * 100 + place) for place in range(32)]
        for _ in range(8):
            slow = slow @ slow.sigmoid() / 8192
        with no_waiting():
            pool.tensor.fill_(content)
            filled = mark_steps(device)
            tiers.keep(range(32), names)
            assert not filled.query(), "the thread has waited for the device"
            pool.tensor.fill_(-1.0)
        assert read_to_end(tiers, range(32, 64), names, mark_steps(device)) == 32
        assert (pool.tensor[32:] == content).all()
        assert (pool.tensor[:32] == -1.0).all()
    tiers.close([], PATIENCE_S)
