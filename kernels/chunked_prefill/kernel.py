"""Attention of a ragged batch of chunks, each at the end of its sequence's paged KV.

Sequence s owns rows cu_seqlens_q[s] ≤ t < cu_seqlens_q[s + 1] of query and out [num_tokens, num_q_heads,
head_dim]; row t is at position p = context_lens[s] - (cu_seqlens_q[s + 1] - t) and

    out[t, h] = Σ_n softmax_n(cap(scale · query[t, h]·K[s, n, h // group])) V[s, n, h // group]

for n ≤ p, and n > p - sliding_window, with sinks[h] as one more logit in the denominator. A chunk of one
token is a decode, so a batch may mix both; those before the first longer chunk may go to `paged_decode`,
which shares out their contexts. kv_layer [num_blocks, 2, block_size, num_kv_heads, head_dim];
block_tables [num_seqs, max_blocks], context_lens [num_seqs], cu_seqlens_q [num_seqs + 1] are int32.

One program takes Q consecutive queries of one sequence with the whole GQA group of one KV head, packed into
the rows of a dot product, so that each KV tile is loaded once for all of them. A program finds its queries on
the device: sequence s has tiles from cu_seqlens_q[s] // Q + s on, which is enough for any lengths, so the
host need not know them.

With a `span`, rows sum their contexts as in `kernels.span_sums`; the same binary does both.
"""

import torch
from torch import Tensor

from kernels.chunked_prefill.reference import chunked_prefill_reference
from kernels.chunked_prefill.tiling import choose_tiling
from kernels.language import tl, triton
from kernels.launch import can_launch, check_tensor, dot_in_fp32, num_sms, pad_to_dot, scales_strides
from kernels.native import ops as native
from kernels.paged_attention.arguments import Softmax, check_attention
from kernels.paged_attention.kernel import MAX_TILE, attend_tiles, normalise
from kernels.paged_decode.kernel import paged_decode
from kernels.paged_decode.splits import choose_num_splits
from kernels.span_sums.kernel import add_span, add_spans, count_spans, make_partials


@triton.jit(do_not_specialize=["first_seq", "num_seqs"])
def _find_sequence(cu_ptr, first_seq, num_seqs, tile, Q: tl.constexpr):
    """Return the last sequence from `first_seq` on whose tiles begin at or before `tile`."""
    low = first_seq
    high = num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(cu_ptr + middle) // Q + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit(do_not_specialize=["num_decodes", "num_seqs", "max_spans", "stride_table", "window"])
def _chunked_prefill_kernel(
    q_ptr,
    kv_ptr,
    table_ptr,
    context_lens_ptr,
    cu_ptr,
    sinks_ptr,
    out_ptr,
    partial_stats_ptr,  # as `make_partials` gives them, or None without a SPAN
    partial_acc_ptr,
    num_decodes,  # sequences in front, of one token each, whose rows are not written
    num_seqs,
    max_spans,
    stride_q_token,
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
    GROUP: tl.constexpr,
    Q: tl.constexpr,
    M: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    TILE: tl.constexpr,
    SPAN: tl.constexpr,  # a multiple of TILE, or None
    DOT_IN_FP32: tl.constexpr,
):
    # Backwards: the last queries of a prompt have the most to read, and should not be what is waited for.
    tile = num_decodes // Q + num_decodes + tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1).to(tl.int64)
    num_q_heads = tl.num_programs(1) * GROUP
    seq = _find_sequence(cu_ptr, num_decodes, num_seqs, tile, Q)
    chunk_begin = tl.load(cu_ptr + seq)
    chunk_len = tl.load(cu_ptr + seq + 1) - chunk_begin
    query_begin = (tile - (chunk_begin // Q + seq)) * Q
    if query_begin >= chunk_len:
        return

    rows = tl.arange(0, M)
    dims = tl.arange(0, HEAD_PAD)
    local = query_begin + rows // GROUP  # index of the row's query within the chunk
    real_row = (rows < Q * GROUP) & (local < chunk_len)
    real = real_row[:, None] & (dims < HEAD_DIM)[None, :]
    token = (chunk_begin + local).to(tl.int64)
    head = kv_head * GROUP + rows % GROUP
    q_rows = q_ptr + token * stride_q_token + head * stride_q_head
    q = tl.load(q_rows[:, None] + dims[None, :], mask=real, other=0.0)

    before_chunk = tl.load(context_lens_ptr + seq) - chunk_len
    last = before_chunk + tl.minimum(query_begin + Q, chunk_len)
    first = tl.zeros_like(last)
    whole_first = first
    if window is not None:
        first = tl.maximum(before_chunk + query_begin - window + 1, 0)
        whole_first = tl.maximum(tl.cdiv(last - window, TILE), first // TILE) * TILE
    whole_last = tl.maximum(whole_first, (before_chunk + query_begin + 1) // TILE * TILE)
    keys = kv_ptr + kv_head * stride_kv_head
    key_scales = None
    value_scales = None
    if scales_ptr is not None:
        key_scales = scales_ptr + kv_head * stride_scales_head
        value_scales = key_scales + stride_scales_kind
    table = table_ptr + seq.to(tl.int64) * stride_table
    row = token * num_q_heads + head
    if SPAN is None:
        m, total, acc = attend_tiles(
            q,
            before_chunk + local,
            first,
            last,
            whole_first,
            whole_last,
            table,
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
    else:
        first_span = first // SPAN
        num_spans = tl.cdiv(last, SPAN) - first_span
        is_shared = (tl.num_programs(2) > 1) & (chunk_len == 1) & (num_spans > 1)
        if tl.program_id(2) >= tl.where(is_shared, num_spans, 1):
            return
        m = tl.full([M], float("-inf"), tl.float32)
        total = tl.zeros([M], tl.float32)
        acc = tl.zeros([M, HEAD_PAD], tl.float32)
        for span in range(tl.program_id(2), num_spans, tl.where(is_shared, tl.num_programs(2), 1)):
            begin = (first_span + span) * SPAN
            end = begin + SPAN
            whole_begin = tl.minimum(tl.maximum(whole_first, begin), end)
            m_span, total_span, acc_span = attend_tiles(
                q,
                before_chunk + local,
                tl.maximum(first, begin),
                tl.minimum(last, end),
                whole_begin,
                tl.minimum(tl.maximum(whole_last, whole_begin), end),
                table,
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
            if is_shared:
                part = row * max_spans + span
                totals_ptr = partial_stats_ptr + num_q_heads.to(tl.int64) * num_seqs * max_spans
                tl.store(partial_stats_ptr + part, m_span, mask=real_row)
                tl.store(totals_ptr + part, total_span, mask=real_row)
                tl.store(partial_acc_ptr + part[:, None] * HEAD_DIM + dims[None, :], acc_span, mask=real)
            else:
                m, total, acc = add_span(m, total, acc, m_span, total_span, acc_span)
        if is_shared:
            return
    sink = None
    if sinks_ptr is not None:
        sink = tl.load(sinks_ptr + head)
    out = normalise(m, total, acc, sink)
    out_rows = out_ptr + row * HEAD_DIM
    tl.store(out_rows[:, None] + dims[None, :], out.to(out_ptr.dtype.element_ty), mask=real)


def chunked_prefill(
    query: Tensor,
    kv_layer: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    cu_seqlens_q: Tensor,
    softmax: Softmax,
    kv_scales: Tensor | None = None,
    *,
    span: int | None = None,
    num_splits: int | None = None,
    num_decodes: int = 0,
) -> Tensor:
    """Attend causally with each sequence's last tokens, its chunk, over its whole context.

    The chunk's own keys and values are in the pool already. cu_seqlens_q begins with 0, never falls, ends
    with num_tokens, and gives no sequence more tokens than its context; on the CPU this is checked. float64
    is always computed by the reference. Entries of `block_tables` that no visible position needs are never
    read. A chunk's context is read by one program per KV head and tile of queries. Of the first sequences,
    `num_decodes` have one token each; without a `span`, `paged_decode` attends with those, into the same
    output.

    With a `span`, a multiple of 64, a compiled row has the same bits whatever the batch and its chunk, as
    long as the span is the same. Then, in a batch of as many tokens as sequences, `num_splits` programs (by
    default chosen from the device and the sizes) share the context of a chunk of one token.
    """
    shape = check_attention(query, kv_layer, kv_scales, block_tables, context_lens, softmax)
    _check_chunks(query, context_lens, cu_seqlens_q)
    if span is not None and (span < 1 or span % MAX_TILE):
        raise ValueError(f"span is {span}; accepted: None, or a multiple of {MAX_TILE}")
    if num_splits is not None and (span is None or num_splits < 1):
        raise ValueError(f"num_splits is {num_splits}; accepted: None, or at least 1 with a span")
    if not 0 <= num_decodes <= context_lens.shape[0]:
        raise ValueError(f"num_decodes is {num_decodes}; accepted: 0 to {context_lens.shape[0]}")
    if query.dtype == torch.float64 or not can_launch(_chunked_prefill_kernel, query.device):
        if native.attends(query, kv_layer):
            return native.paged_attention(
                query, kv_layer, kv_scales, block_tables, context_lens, cu_seqlens_q, softmax
            )
        return chunked_prefill_reference(
            query, kv_layer, block_tables, context_lens, cu_seqlens_q, softmax, kv_scales
        )
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if not out.numel():
        return out
    if span is not None:
        # A query of one token may have any stride, and Triton compiles another binary for some.
        query, num_decodes = query.contiguous().view(-1).view(query.shape), 0
    if num_decodes:
        decodes = query[:num_decodes], kv_layer, block_tables[:num_decodes], context_lens[:num_decodes]
        paged_decode(*decodes, softmax, kv_scales, out=out[:num_decodes])
    num_seqs, (num_tokens, num_q_heads, head_dim) = context_lens.shape[0], query.shape
    group = num_q_heads // shape.num_kv_heads
    window = softmax.sliding_window
    head_pad = pad_to_dot(head_dim)
    tiling = choose_tiling(
        group, head_pad, query.element_size(), kv_layer.element_size(), in_spans=span is not None
    )
    max_spans = 1
    if span is not None and num_tokens == num_seqs:
        capacity, num_rows = block_tables.shape[1] * shape.block_size, num_seqs * shape.num_kv_heads
        max_spans = count_spans(capacity, window, span)
        num_splits = num_splits or choose_num_splits(capacity, window, num_rows, num_sms(query.device))
    num_splits = min(num_splits or 1, max_spans)
    partials = None if span is None else make_partials(query, max_spans if num_splits > 1 else 1)
    tiles_before = num_decodes // tiling.queries + num_decodes
    num_tiles = num_tokens // tiling.queries + num_seqs - tiles_before
    if not num_tiles:
        return out
    _chunked_prefill_kernel[(num_tiles, shape.num_kv_heads, num_splits)](
        query,
        kv_layer,
        block_tables,
        context_lens,
        cu_seqlens_q,
        softmax.sinks,
        out,
        *(partials or (None, None)),
        num_decodes,
        num_seqs,
        max_spans,
        *query.stride()[:2],
        *kv_layer.stride()[:4],
        kv_scales,
        *scales_strides(kv_scales),
        block_tables.stride(0),
        softmax.scale,
        softmax.softcap,
        window,
        GROUP=group,
        Q=tiling.queries,
        M=tiling.rows,
        BLOCK_SIZE=shape.block_size,
        HEAD_DIM=head_dim,
        HEAD_PAD=head_pad,
        TILE=tiling.keys,
        SPAN=span,
        DOT_IN_FP32=dot_in_fp32(_chunked_prefill_kernel, query.dtype),
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
    if span is not None and partials is not None and num_splits > 1:
        add_spans(*partials, context_lens, cu_seqlens_q, softmax.sinks, window, span, out)
    return out


def _check_chunks(query: Tensor, context_lens: Tensor, cu_seqlens_q: Tensor) -> None:
    check_tensor("cu_seqlens_q", cu_seqlens_q, (len(context_lens) + 1,), (torch.int32,), query.device)
    if cu_seqlens_q.is_cuda:
        return
    lengths = cu_seqlens_q.diff()
    if cu_seqlens_q[0] != 0 or cu_seqlens_q[-1] != query.shape[0] or (lengths < 0).any():
        raise ValueError(
            f"cu_seqlens_q is {cu_seqlens_q.tolist()}; accepted: from 0, never falling, to num_tokens "
            f"({query.shape[0]})"
        )
    if (lengths > context_lens).any():
        raise ValueError(
            f"context_lens is {context_lens.tolist()}; accepted: at least the chunks' {lengths.tolist()}"
        )
