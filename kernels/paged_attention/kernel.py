"""The loop that both attention kernels run: one tile of queries over a range of one sequence's paged KV.

Online softmax (Milakov and Gimelshein 2018) over KV tiles, as in FlashAttention (Dao et al. 2022): for each
row a running maximum m, total = Σ 2^(s - m) and acc = Σ 2^(s - m) v, with scores s in units of log2.
Tiles are aligned to absolute positions, so the order of a row's additions depends on its position alone.

A tile of 8-bit KV is multiplied as it is stored, since its numbers are exact in every dtype of a query. A
key's scale then multiplies its column of scores, and a value's its column of weights. That takes M products
for each KV row instead of head_dim, and adds no rounding to that of quantisation.
"""

from kernels.language import tl, triton

# KV rows per step of the loop. 64 rows of 256 bytes are 32 KiB with K and V, so that a Hopper SM's 227 KiB
# hold several programs with more than one tile in flight each. Wider rows make the tile shorter.
MAX_TILE = 64
MIN_TILE = 16
ROW_BYTES = 256

LOG2_E = tl.constexpr(1.4426950408889634)


def tile_len(head_pad: int, element_size: int, longest: int = MAX_TILE) -> int:
    """Return `longest` KV rows if they have up to ROW_BYTES, fewer if longer."""
    return max(MIN_TILE, min(longest, longest * ROW_BYTES // (head_pad * element_size)))


@triton.jit
def attend_tiles(
    q,  # [M, HEAD_PAD], zeros where there is no query or no dimension
    q_pos,  # [M] absolute positions
    first,  # KV positions first ≤ n < last are read, and no others
    last,
    whole_first,  # multiples of TILE, between which every row sees every position
    whole_last,
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
    """Return float32 (m [M], total [M], acc [M, HEAD_PAD]); a row that saw no key has -inf, 0 and zeros.

    `whole_first` is None if no tile is known to be visible to all rows; then each tile is masked.
    """
    m = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, HEAD_PAD], tl.float32)
    if DOT_IN_FP32:
        q = q.to(tl.float32)
    begin = first // TILE * TILE
    if whole_first is not None:
        if window is not None:
            for start in range(begin, whole_first, TILE):
                m, total, acc = _attend_tile(
                    start, m, total, acc, q, q_pos, first, last, table_ptr, k_ptr, v_ptr, stride_block,
                    stride_slot, k_scales_ptr, v_scales_ptr, stride_scales_block, scale, softcap, window,
                    BLOCK_SIZE, HEAD_DIM, HEAD_PAD, TILE, DOT_IN_FP32, True,
                )  # fmt: skip
        for start in range(whole_first, whole_last, TILE):
            m, total, acc = _attend_tile(
                start, m, total, acc, q, q_pos, first, last, table_ptr, k_ptr, v_ptr, stride_block,
                stride_slot, k_scales_ptr, v_scales_ptr, stride_scales_block, scale, softcap, window,
                BLOCK_SIZE, HEAD_DIM, HEAD_PAD, TILE, DOT_IN_FP32, False,
            )  # fmt: skip
        begin = whole_last
    for start in range(begin, last, TILE):
        m, total, acc = _attend_tile(
            start, m, total, acc, q, q_pos, first, last, table_ptr, k_ptr, v_ptr, stride_block,
            stride_slot, k_scales_ptr, v_scales_ptr, stride_scales_block, scale, softcap, window,
            BLOCK_SIZE, HEAD_DIM, HEAD_PAD, TILE, DOT_IN_FP32, True,
        )  # fmt: skip
    return m, total, acc


@triton.jit
def _attend_tile(
    start,
    m,
    total,
    acc,
    q,
    q_pos,
    first,
    last,
    table_ptr,
    k_ptr,
    v_ptr,
    stride_block,
    stride_slot,
    k_scales_ptr,
    v_scales_ptr,
    stride_scales_block,
    scale,
    softcap,
    window,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    TILE: tl.constexpr,
    DOT_IN_FP32: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Return m, total and acc with the tile from `start` on. Masks cost as much as the exponentials."""
    n = start + tl.arange(0, TILE)
    readable = None
    if MASKED:
        readable = (n >= first) & (n < last)
    block = _load(table_ptr + n // BLOCK_SIZE, readable).to(tl.int64)
    row = block * stride_block + (n % BLOCK_SIZE).to(tl.int64) * stride_slot
    k = _load_rows(k_ptr + row, readable, HEAD_DIM, HEAD_PAD)
    v = _load_rows(v_ptr + row, readable, HEAD_DIM, HEAD_PAD)
    if DOT_IN_FP32 or k_scales_ptr is not None:
        k = k.to(q.dtype)
        v = v.to(q.dtype)
    s = tl.dot(q, tl.trans(k), input_precision="ieee")
    if k_scales_ptr is not None:
        place = block * stride_scales_block + n % BLOCK_SIZE
        s *= _load(k_scales_ptr + place, readable)[None, :]
    unit = scale * LOG2_E  # of log2, to which the exponentials are
    if softcap is not None:
        s = s * scale
        s = softcap * (2.0 * tl.sigmoid(2.0 * s / softcap) - 1.0)  # softcap · tanh(s / softcap)
        unit = LOG2_E
    if readable is not None:
        visible = readable[None, :] & (n[None, :] <= q_pos[:, None])
        if window is not None:
            visible &= n[None, :] > q_pos[:, None] - window
        s = tl.where(visible, s, float("-inf"))
    m_next = tl.maximum(m, tl.max(s, axis=1) * unit)
    m_finite = tl.where(m_next == float("-inf"), 0.0, m_next)  # -inf - -inf would be NaN
    p = tl.exp2(s * unit - m_finite[:, None])
    shrink = tl.exp2(m - m_finite)
    total = total * shrink + tl.sum(p, axis=1)
    if v_scales_ptr is not None:
        p *= _load(v_scales_ptr + place, readable)[None, :]
    acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
    return m_next, total, acc


@triton.jit
def _load_rows(rows_ptr, readable, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr):
    """Load [rows, HEAD_PAD]; unreadable rows are zeros, as a NaN in a free slot must not reach a product."""
    dims = tl.arange(0, HEAD_PAD)
    real = None
    if HEAD_DIM < HEAD_PAD:
        real = (dims < HEAD_DIM)[None, :]
        if readable is not None:
            real = real & readable[:, None]
    elif readable is not None:
        real = readable[:, None]
    return _load(rows_ptr[:, None] + dims[None, :], real)


@triton.jit
def _load(ptr, mask):
    """Load, with zeros where `mask` is False; None masks nothing."""
    return tl.load(ptr) if mask is None else tl.load(ptr, mask=mask, other=0.0)


@triton.jit
def normalise(m, total, acc, sink):
    """Divide acc by the softmax denominator, to which `sink` [M] (or None) adds one logit per row.

    Fused operations are explicit, so all kernels that call this round alike.
    """
    if sink is not None:
        sink = sink.to(tl.float32)
        top = tl.maximum(m, sink * LOG2_E)
        shrink = tl.exp2(m - top)
        total = tl.fma(total, shrink, tl.exp2(tl.fma(sink, tl.full(sink.shape, LOG2_E, tl.float32), -top)))
        acc = acc * shrink[:, None]
    return acc / tl.where(total > 0.0, total, 1.0)[:, None]
