from __future__ import annotations

import fcntl
import mmap
import os

import pytest
import torch

from engine.kv.kv_pool import BlockLayout, KVPool, PoolPart

LAYOUT = BlockLayout(num_layers=3, block_size=4, num_kv_heads=2, head_dim=8, dtype=torch.float32)


def test_a_block_s_bytes_are_contiguous_and_hold_every_layer() -> None:
    pool = KVPool(LAYOUT, num_blocks=5)
    assert pool.block_bytes == 3 * 2 * 4 * 2 * 8 * 4
    for layer in range(3):
        pool.layer(layer)[2] = layer + 1
    found = torch.frombuffer(pool.block_bytes_view(2), dtype=torch.float32).view(LAYOUT.shape)
    assert found.flatten(1).unique(dim=1).tolist() == [[1.0], [2.0], [3.0]]
    assert not pool.tensor[[0, 1, 3, 4]].any()


def test_writing_a_block_s_bytes_writes_the_tensor() -> None:
    pool = KVPool(LAYOUT, num_blocks=2)
    source = torch.arange(pool.block_bytes // 4, dtype=torch.float32)
    pool.block_bytes_view(1)[:] = source.numpy().tobytes()
    assert torch.equal(pool.tensor[1].flatten(), source)


def test_whoever_holds_the_descriptor_sees_the_blocks() -> None:
    pool = KVPool(LAYOUT, num_blocks=3)
    pool.layer(1)[2, 1, 3] = 7.5
    assert pool.fd is not None
    with mmap.mmap(pool.fd, 0, prot=mmap.PROT_READ) as seen:
        other = torch.frombuffer(bytearray(seen), dtype=torch.float32).view(3, *LAYOUT.shape)
    assert torch.equal(other, pool.tensor)


def test_the_memory_cannot_be_shrunk_under_a_reader() -> None:
    pool = KVPool(LAYOUT, num_blocks=3)
    assert pool.fd is not None
    with pytest.raises(PermissionError):
        os.ftruncate(pool.fd, 10)
    assert fcntl.fcntl(pool.fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SEAL


def test_closing_gives_the_descriptor_back_and_keeps_the_tensor() -> None:
    pool = KVPool(LAYOUT, num_blocks=2)
    fd = pool.fd
    assert fd is not None
    pool.close()
    pool.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    pool.tensor.fill_(1.0)


@pytest.mark.parametrize("block", [-1, 2])
def test_a_block_outside_the_pool_is_refused(block: int) -> None:
    with pytest.raises(ValueError, match=f"block is {block}; accepted: 0 to 1"):
        KVPool(LAYOUT, num_blocks=2).block_bytes_view(block)


def test_nonsense_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="num_blocks is 0; accepted: at least 1"):
        KVPool(LAYOUT, num_blocks=0)
    with pytest.raises(ValueError, match="block_size is 0; accepted: at least 1"):
        BlockLayout(1, 0, 1, 1, torch.float32)


def test_bfloat16_blocks_take_two_bytes_a_number() -> None:
    layout = BlockLayout(2, 4, 2, 8, torch.bfloat16)
    assert KVPool(layout, 2).tensor.dtype == torch.bfloat16
    assert layout.block_bytes == 2 * 2 * 4 * 2 * 8 * 2


@pytest.mark.parametrize("stored", [None, torch.int8])
def test_a_part_is_some_heads_of_the_same_memory(stored: torch.dtype | None) -> None:
    pool = KVPool(BlockLayout(2, 4, 6, 8, torch.float32, stored), 3)
    part = PoolPart(pool, slice(2, 4))
    assert part.layout.num_kv_heads == 2
    assert part.layer(1).shape == (3, 2, 4, 2, 8)
    part.layer(1).fill_(1)
    assert pool.layer(1)[..., 2:4, :].eq(1).all()
    assert pool.layer(1).count_nonzero() == part.layer(1).numel()
    assert pool.layer(0).count_nonzero() == 0
    scales = part.scales(1)
    assert (scales is None) == (stored is None)
    if scales is not None:
        assert scales.shape == (3, 2, 2, 4)


def test_another_process_maps_the_same_pool() -> None:
    pool = KVPool(BlockLayout(2, 4, 6, 8, torch.float32), 3)
    assert pool.fd is not None
    other = KVPool(pool.layout, 3, fd=os.dup(pool.fd))
    other.layer(1)[2, 0, 3].fill_(7)
    assert pool.layer(1)[2, 0, 3].eq(7).all()
    assert bytes(pool.block_bytes_view(2)) == bytes(other.block_bytes_view(2))
    other.close()
    pool.close()
