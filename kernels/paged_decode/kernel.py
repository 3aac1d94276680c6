"""Attention of one new token per sequence over its paged KV.

    out[s, h] = Σ_n softmax_n(cap(scale · query[s, h]·K[s, n, h // group])) V[s, n, h // group]

for the positions n < context_lens[s] that the sliding window leaves visible, with sinks[h] as one more logit
in the denominator. query, out [num_seqs, num_q_heads, head_dim]; kv_layer [num_blocks, 2, block_size,
num_kv_heads, head_dim]; block_tables [num_seqs, max_blocks] int32; context_lens [num_seqs] int32.

Decoding reads each KV byte once and is bound by that. So one program serves a whole GQA group, whose query
heads fill the rows of one dot product, and long contexts are split among programs so that a small batch still
occupies the device; a second kernel combines the splits' partial softmaxes.
"""

import torch
from torch import Tensor

from kernels.language import tl, triton
from kernels.launch import can_launch, dot_in_fp32, next_power_of_2, num_sms, pad_to_dot, scales_strides
from kernels.native import ops as native
from kernels.paged_attention.arguments import Softmax, check_attention
from kernels.paged_attention.kernel import attend_tiles, normalise, tile_len
from kernels.paged_decode.reference import paged_decode_reference
from kernels.paged_decode.splits import MAX_SPLITS, MIN_SPLIT_LEN, choose_num_splits
from kernels.span_sums.kernel import make_partials

NUM_WARPS = 4  # the dot's 16 rows are a single warp's worth: more warps serve only the loads
# A tile is two dependent loads, table entry then KV, and Triton spends half the stages on the first: five
# keep two KV tiles in flight (72 KiB in 16 bits at head_dim 128), three keep one.
NUM_STAGES = 5


@triton.jit
def _share_out(context_len, window, num_splits, least_split_len, TILE: tl.constexpr):
    """Return a sequence's first visible position, its first split's begin, the splits' length and number."""
    first = tl.zeros_like(context_len)
    if window is not None:
        first = tl.maximum(context_len - window, 0)
    begin = first // TILE * TILE
    span = context_len - begin
    split_len = tl.maximum(tl.cdiv(tl.cdiv(span, num_splits), TILE) * TILE, least_split_len)
    return first, begin, split_len, tl.cdiv(span, split_len)


@triton.jit(do_not_specialize=["stride_table", "least_split_len", "window"])
def _paged_decode_kernel(
    q_ptr,
    kv_ptr,
    table_ptr,
    context_lens_ptr,
    sinks_ptr,
    out_ptr,
    partial_stats_ptr,  # [2, num_seqs, num_q_heads, num_splits], or None: one split, written to out
    partial_acc_ptr,  # [num_seqs, num_q_heads, num_splits, HEAD_DIM], or None
    stride_q_seq,
    stride_q_head,
    stride_kv_block,
    stride_kv_kind,
    stride_kv_slot,
    stride_kv_head,
    scales_ptr,  # None: not quantised
    stride_scales_block,
    stride_scales_kind,
    stride_scales_head,
    stride_table,
    scale,
    softcap,
    window,
    least_split_len,
    GROUP: tl.constexpr,
    M: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    TILE: tl.constexpr,
    DOT_IN_FP32: tl.constexpr,
):
    seq = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    num_q_heads = tl.num_programs(1) * GROUP
    context_len = tl.load(context_lens_ptr + seq)
    num_splits = tl.num_programs(2)
    first, first_split, split_len, num_used = _share_out(
        context_len, window, num_splits, least_split_len, TILE
    )
    split_start = first_split + tl.program_id(2) * split_len
    begin = tl.maximum(first, split_start)
    end = tl.minimum(context_len, split_start + split_len)
    if partial_acc_ptr is not None and begin >= end:
        return

    rows = tl.arange(0, M)
    dims = tl.arange(0, HEAD_PAD)
    heads = kv_head * GROUP + rows
    real = (rows < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    q_rows = q_ptr + seq * stride_q_seq + heads * stride_q_head
    q = tl.load(q_rows[:, None] + dims[None, :], mask=real, other=0.0)
    q_pos = tl.zeros([M], tl.int32) + (context_len - 1)
    keys = kv_ptr + kv_head * stride_kv_head
    key_scales = None
    value_scales = None
    if scales_ptr is not None:
        key_scales = scales_ptr + kv_head * stride_scales_head
        value_scales = key_scales + stride_scales_kind
    m, total, acc = attend_tiles(
        q,
        q_pos,
        begin,
        end,
        None,
        None,
        table_ptr + seq * stride_table,
        keys,
        keys + stride_kv_kind,
        stride_kv_block,
        stride_kv_slot,
        key_scales,
        value_scales,
        stride_scales_block,
        scale,
        softcap,
        window,
        BLOCK_SIZE,
        HEAD_DIM,
        HEAD_PAD,
        M,
        TILE,
        DOT_IN_FP32,
    )

    row = seq * num_q_heads + heads
    if partial_acc_ptr is None or num_used == 1:
        sink = None
        if sinks_ptr is not None:
            sink = tl.load(sinks_ptr + heads, mask=rows < GROUP, other=0.0)
        out = normalise(m, total, acc, sink)
        out_rows = out_ptr + row * HEAD_DIM
        tl.store(out_rows[:, None] + dims[None, :], out.to(out_ptr.dtype.element_ty), mask=real)
    if partial_acc_ptr is not None and num_used > 1:
        part = row * num_splits + tl.program_id(2)
        totals_ptr = partial_stats_ptr + tl.num_programs(0).to(tl.int64) * num_q_heads * num_splits
        tl.store(partial_stats_ptr + part, m, mask=rows < GROUP)
        tl.store(totals_ptr + part, total, mask=rows < GROUP)
        tl.store(partial_acc_ptr + part[:, None] * HEAD_DIM + dims[None, :], acc, mask=real)


@triton.jit(do_not_specialize=["num_splits", "least_split_len", "window"])
def _combine_kernel(
    partial_stats_ptr,
    partial_acc_ptr,
    context_lens_ptr,
    sinks_ptr,
    out_ptr,
    num_splits,
    least_split_len,
    window,
    SPLITS_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    TILE: tl.constexpr,
):
    """Sum acc and total of the splits that read something, each times 2^(m_split - m).

    A split that had everything has written the output itself.
    """
    seq = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    row = seq * tl.num_programs(1) + head
    context_len = tl.load(context_lens_ptr + seq)
    _, _, _, num_used = _share_out(context_len, window, num_splits, least_split_len, TILE)
    if num_used == 1:
        return
    splits = tl.arange(0, SPLITS_PAD)
    written = splits < num_used
    part = row * num_splits + splits
    totals_ptr = partial_stats_ptr + tl.num_programs(0).to(tl.int64) * tl.num_programs(1) * num_splits
    m_split = tl.load(partial_stats_ptr + part, mask=written, other=float("-inf"))
    total_split = tl.load(totals_ptr + part, mask=written, other=0.0)
    m = tl.max(m_split, axis=0)
    # A context of length 0 has written nothing, and -inf - -inf is NaN.
    weight = tl.where(written, tl.exp2(m_split - m), 0.0)
    total = tl.sum(weight * total_split, axis=0)
    dims = tl.arange(0, HEAD_PAD)
    real = written[:, None] & (dims < HEAD_DIM)[None, :]
    acc_split = tl.load(partial_acc_ptr + part[:, None] * HEAD_DIM + dims[None, :], mask=real, other=0.0)
    acc = tl.sum(weight[:, None] * acc_split, axis=0)
    # One row for `normalise`, which takes a tile.
    sink = None
    if sinks_ptr is not None:
        sink = tl.load(sinks_ptr + head + tl.zeros([1], tl.int32))
    one = tl.zeros([1], tl.float32)
    out = normalise(m + one, total + one, acc[None, :], sink)
    target = out_ptr + row * HEAD_DIM + dims[None, :]
    tl.store(target, out.to(out_ptr.dtype.element_ty), mask=(dims < HEAD_DIM)[None, :])


def paged_decode(
    query: Tensor,
    kv_layer: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    softmax: Softmax,
    kv_scales: Tensor | None = None,
    *,
    num_splits: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Attend with sequence s's token at position context_lens[s] - 1 over positions 0 to itself.

    A sequence of length 0 gives zeros. float64, which exists to compare implementations with each other, is
    always computed by the reference. Entries of `block_tables` that no visible position needs are never
    read. `num_splits` (1 to 64, by default chosen from the device, the table's width and the batch's size)
    bounds the programs that share one sequence's KV; a sequence's result is the same in any batch of equal
    `num_splits`. The launch depends on sizes alone, so that it can be recorded in a CUDA graph. The result is
    in `out` if there is one.
    """
    shape = check_attention(query, kv_layer, kv_scales, block_tables, context_lens, softmax)
    num_seqs, (num_tokens, num_q_heads, head_dim) = context_lens.shape[0], query.shape
    if num_tokens != num_seqs:
        raise ValueError(f"query has {num_tokens} tokens; accepted: {num_seqs}, as context_lens has")
    if num_splits is not None and not 1 <= num_splits <= MAX_SPLITS:
        raise ValueError(f"num_splits is {num_splits}; accepted: None, or 1 to {MAX_SPLITS}")
    if query.dtype == torch.float64 or not can_launch(_paged_decode_kernel, query.device):
        if native.attends(query, kv_layer):
            starts = torch.arange(num_seqs + 1, dtype=torch.int32)
            result = native.paged_attention(
                query, kv_layer, kv_scales, block_tables, context_lens, starts, softmax
            )
        else:
            result = paged_decode_reference(query, kv_layer, block_tables, context_lens, softmax, kv_scales)
        return result if out is None else out.copy_(result)
    if out is None:
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if not out.numel():
        return out
    group = num_q_heads // shape.num_kv_heads
    head_pad = pad_to_dot(head_dim)
    tile = tile_len(head_pad, query.element_size())
    # Who asks for splits gets them, however short.
    least_split_len = MIN_SPLIT_LEN if num_splits is None else tile
    if num_splits is None:
        capacity, num_rows = block_tables.shape[1] * shape.block_size, num_seqs * shape.num_kv_heads
        num_splits = choose_num_splits(capacity, softmax.sliding_window, num_rows, num_sms(query.device))
    partials = None if num_splits == 1 else make_partials(query, num_splits)
    _paged_decode_kernel[(num_seqs, shape.num_kv_heads, num_splits)](
        query,
        kv_layer,
        block_tables,
        context_lens,
        softmax.sinks,
        out,
        *(partials or (None, None)),
        *query.stride()[:2],
        *kv_layer.stride()[:4],
        kv_scales,
        *scales_strides(kv_scales),
        block_tables.stride(0),
        softmax.scale,
        softmax.softcap,
        softmax.sliding_window,
        least_split_len,
        GROUP=group,
        M=pad_to_dot(group),
        BLOCK_SIZE=shape.block_size,
        HEAD_DIM=head_dim,
        HEAD_PAD=head_pad,
        TILE=tile,
        DOT_IN_FP32=dot_in_fp32(_paged_decode_kernel, query.dtype),
        num_warps=NUM_WARPS,
        num_stages=NUM_STAGES,
    )
    if partials is not None:
        _combine_kernel[(num_seqs, num_q_heads)](
            *partials,
            context_lens,
            softmax.sinks,
            out,
            num_splits,
            least_split_len,
            softmax.sliding_window,
            SPLITS_PAD=MAX_SPLITS,
            HEAD_DIM=head_dim,
            HEAD_PAD=next_power_of_2(head_dim),
            TILE=tile,
            num_warps=NUM_WARPS,
        )
    return out
