"""The loop that both attention kernels run: one tile of queries over a range of one sequence's paged KV.

Online softmax (Milakov and Gimelshein 2018) over KV tiles, as in FlashAttention (Dao et al. 2022): for each
row a running maximum m, total = Σ 2^(s - m) and acc = Σ 2^(s - m) v, with scores s in units of log2.
Tiles are aligned to absolute positions, so the order of a row's additions depends on its position alone.

Of 8-bit KV a tile is multiplied as it is stored, since its numbers are exact in every dtype of a query; a
key's scale then multiplies its column of scores and a value's its column of weights. That is M products for
each KV row instead of head_dim, and rounds nothing that quantising has not.
"""

# mypy: disallow-incomplete-defs=False
# (a kernel annotates its constexprs, and its pointers have no Python type)

import triton
import triton.language as tl

# KV rows per step of the loop. 64 rows of 256 bytes are 32 KiB with K and V, so that a Hopper SM's 227 KiB
# hold several programs with more than one tile in flight each. Wider rows make the tile shorter.
TILE_BYTES = 64 * 256
MAX_TILE = 64
MIN_TILE = 16

LOG2_E = tl.constexpr(1.4426950408889634)


def tile_len(head_pad: int, element_size: int) -> int:
    return max(MIN_TILE, min(MAX_TILE, TILE_BYTES // (head_pad * element_size)))


@triton.jit
def attend_tiles(
    q,  # [M, HEAD_PAD], zeros where there is no query or no dimension
    q_pos,  # [M] absolute positions
    first,  # KV positions first ≤ n < last are read, and no others
    last,
    table_ptr,  # the sequence's row of block_tables
    k_ptr,  # slot 0 of block 0 of this KV head
    v_ptr,
    stride_block,
    stride_slot,
    k_scales_ptr,  # of slot 0 of block 0, for this KV head; None where KV is not quantised
    v_scales_ptr,
    stride_scales_block,
    scale,
    softcap,
    window,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    M: tl.constexpr,
    TILE: tl.constexpr,
    DOT_IN_FP32: tl.constexpr,
):
    """Returns float32 (m [M], total [M], acc [M, HEAD_PAD]); a row that saw no key has -inf, 0 and zeros."""
    m = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, HEAD_PAD], tl.float32)
    dims = tl.arange(0, HEAD_PAD)
    if DOT_IN_FP32:
        q = q.to(tl.float32)
    for start in range(first // TILE * TILE, last, TILE):
        n = start + tl.arange(0, TILE)
        readable = (n >= first) & (n < last)
        block = tl.load(table_ptr + n // BLOCK_SIZE, mask=readable, other=0).to(tl.int64)
        row = block * stride_block + (n % BLOCK_SIZE).to(tl.int64) * stride_slot
        # What is not readable is loaded as zeros: a NaN left in a free slot must not reach the product.
        real = readable[:, None] & (dims < HEAD_DIM)[None, :]
        k = tl.load(k_ptr + row[:, None] + dims[None, :], mask=real, other=0.0)
        v = tl.load(v_ptr + row[:, None] + dims[None, :], mask=real, other=0.0)
        if DOT_IN_FP32 or k_scales_ptr is not None:
            k = k.to(q.dtype)
            v = v.to(q.dtype)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if k_scales_ptr is not None:
            place = block * stride_scales_block + n % BLOCK_SIZE
            s *= tl.load(k_scales_ptr + place, mask=readable, other=0.0)[None, :]
        if softcap is not None:
            s = softcap * (2.0 * tl.sigmoid(2.0 * s / softcap) - 1.0)  # softcap · tanh(s / softcap)
        visible = readable[None, :] & (n[None, :] <= q_pos[:, None])
        if window is not None:
            visible &= n[None, :] > q_pos[:, None] - window
        s = tl.where(visible, s * LOG2_E, float("-inf"))
        m_next = tl.maximum(m, tl.max(s, axis=1))
        m_finite = tl.where(m_next == float("-inf"), 0.0, m_next)  # -inf - -inf would be NaN
        p = tl.exp2(s - m_finite[:, None])
        shrink = tl.exp2(m - m_finite)
        total = total * shrink + tl.sum(p, axis=1)
        if v_scales_ptr is not None:
            p *= tl.load(v_scales_ptr + place, mask=readable, other=0.0)[None, :]
        acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = m_next
    return m, total, acc


@triton.jit
def normalise(m, total, acc, sink):
    """Divide acc by the softmax denominator, to which `sink` [M] (or None) adds one logit per row."""
    if sink is not None:
        sink = sink.to(tl.float32) * LOG2_E
        top = tl.maximum(m, sink)
        shrink = tl.exp2(m - top)
        total = total * shrink + tl.exp2(sink - top)
        acc = acc * shrink[:, None]
    return acc / tl.where(total > 0.0, total, 1.0)[:, None]
