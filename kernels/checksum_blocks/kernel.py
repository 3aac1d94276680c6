"""Checksums of KV blocks on their device, for handoffs that do not touch host memory.

pool [num_blocks, ...] contiguous, of any dtype, a block being whole 32-bit words; block_ids [n] int64 on the
pool's device. A program sums up a piece of one block, with 15 integer operations for each word and sum: on an
H200 that is predicted to run at over 1 TB/s, far beyond what a link or a prefill produces.
"""

import torch
from torch import Tensor

from kernels.checksum_blocks.reference import checksum_blocks_reference, upper_halves
from kernels.language import tl, triton
from kernels.launch import can_launch, check_block_ids

NUM_WARPS = 4
TILE_WORDS = NUM_WARPS * 32 * 4
PIECE_TILES = 16
"""A piece of 32 KiB: a block of 2 MiB keeps 64 programs busy."""


@triton.jit
def _multiplier(place):
    mixed = (place + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB
    return mixed ^ (mixed >> 31)


@triton.jit
def _checksum_blocks_kernel(
    pool_ptr,
    block_ids_ptr,
    sums_ptr,  # [n, num_pieces, 2]
    num_words,  # of a block
    num_pieces,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1).to(tl.int64)
    words_ptr = pool_ptr + tl.load(block_ids_ptr + index) * num_words
    low = tl.zeros([TILE], tl.uint64)
    high = tl.zeros([TILE], tl.uint64)
    for tile in range(TILES):
        places = (piece * TILES + tile) * TILE + tl.arange(0, TILE)
        words = tl.load(words_ptr + places, mask=places < num_words, other=0)
        words = words.to(tl.uint32, bitcast=True).to(tl.uint64)
        low += words * _multiplier(2 * places)
        high += words * _multiplier(2 * places + 1)
    out = sums_ptr + (index * num_pieces + piece) * 2
    tl.store(out, tl.sum(low.to(tl.int64, bitcast=True)))
    tl.store(out + 1, tl.sum(high.to(tl.int64, bitcast=True)))


def checksum_blocks(pool: Tensor, block_ids: Tensor) -> Tensor:
    """Return [n] int64, the bits of the 64-bit checksums of blocks, which `reference.py` defines.

    On the CPU an id beyond the pool raises ValueError; on a GPU that check would stall the stream.
    """
    check_block_ids(block_ids, pool)
    block_bytes = pool[0].numel() * pool.element_size()
    if block_bytes % 4:
        raise ValueError(f"a block of pool has {block_bytes} bytes; accepted: a multiple of 4")
    if not can_launch(_checksum_blocks_kernel, pool.device):
        return checksum_blocks_reference(pool, block_ids)
    num_words = block_bytes // 4
    num_pieces = triton.cdiv(num_words, TILE_WORDS * PIECE_TILES)
    sums = torch.empty((len(block_ids), num_pieces, 2), dtype=torch.int64, device=pool.device)
    if sums.numel():
        _checksum_blocks_kernel[len(block_ids), num_pieces](
            pool.view(-1).view(torch.int32),
            block_ids,
            sums,
            num_words,
            num_pieces,
            TILE=TILE_WORDS,
            TILES=PIECE_TILES,
            num_warps=NUM_WARPS,
        )
    low, high = sums.sum(1).unbind(-1)
    return upper_halves(low, high)
