"""Copy whole KV blocks between a pool and a packed buffer, for handoff and swap.

    gather:   out[i] = pool[block_ids[i]]
    scatter:  pool[block_ids[i]] = source[i]

pool [num_blocks, ...], out and source [n, ...], contiguous, of one dtype, which may be any: words are copied,
as wide as blocks and addresses allow. block_ids [n] int64 on the pool's device. One launch copies all blocks,
a piece of a block per program, at the device's copy rate; a memcpy per block would be bound by its launches.
"""

import torch
from torch import Tensor

from kernels.copy_blocks.reference import gather_blocks_reference, scatter_blocks_reference
from kernels.language import tl, triton
from kernels.launch import can_launch, check_block_ids, check_contiguous, check_tensor

# A thread of a program has four loads of 16 bytes in flight.
NUM_WARPS = 4
PIECE_BYTES = NUM_WARPS * 32 * 4 * 16
WORDS = (torch.int64, torch.int32, torch.uint8)


@triton.jit
def _copy_blocks_kernel(
    source_ptr,
    target_ptr,
    block_ids_ptr,
    num_words,  # of a block
    GATHER: tl.constexpr,
    PIECE: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64)
    block = tl.load(block_ids_ptr + index)
    words = tl.program_id(1).to(tl.int64) * PIECE + tl.arange(0, PIECE)
    real = words < num_words
    source = source_ptr + (block if GATHER else index) * num_words
    target = target_ptr + (index if GATHER else block) * num_words
    tl.store(target + words, tl.load(source + words, mask=real), mask=real)


def gather_blocks(pool: Tensor, block_ids: Tensor, out: Tensor) -> None:
    """Write block `block_ids[i]` of `pool` to `out[i]`.

    On the CPU an id beyond the pool raises ValueError. On a GPU that check would stall the step; the block
    manager has to get ids right. The same holds for `scatter_blocks`.
    """
    _check(pool, block_ids, "out", out)
    if can_launch(_copy_blocks_kernel, pool.device):
        _launch(pool, out, block_ids, gather=True)
    else:
        gather_blocks_reference(pool, block_ids, out)


def scatter_blocks(source: Tensor, pool: Tensor, block_ids: Tensor) -> None:
    """Write `source[i]` to block `block_ids[i]` of `pool`; the ids are distinct."""
    _check(pool, block_ids, "source", source)
    if can_launch(_copy_blocks_kernel, pool.device):
        _launch(source, pool, block_ids, gather=False)
    else:
        scatter_blocks_reference(source, pool, block_ids)


def _launch(source: Tensor, target: Tensor, block_ids: Tensor, *, gather: bool) -> None:
    if source.numel() == 0 or target.numel() == 0:
        return
    block_bytes = source[0].numel() * source.element_size()
    word = _word(block_bytes, source, target)
    piece = PIECE_BYTES // word.itemsize
    num_words = block_bytes // word.itemsize
    _copy_blocks_kernel[block_ids.shape[0], triton.cdiv(num_words, piece)](
        source.view(-1).view(word),
        target.view(-1).view(word),
        block_ids,
        num_words,
        GATHER=gather,
        PIECE=piece,
        num_warps=NUM_WARPS,
    )


def _word(block_bytes: int, source: Tensor, target: Tensor) -> torch.dtype:
    """Return the widest word that divides a block and both addresses."""
    common = block_bytes | source.data_ptr() | target.data_ptr()
    return next(word for word in WORDS if common % word.itemsize == 0)


def _check(pool: Tensor, block_ids: Tensor, field: str, packed: Tensor) -> None:
    check_block_ids(block_ids, pool)
    check_contiguous(field, packed)
    check_tensor(field, packed, (len(block_ids), *pool.shape[1:]), (pool.dtype,), pool.device)
