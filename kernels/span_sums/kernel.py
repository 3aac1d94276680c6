"""Sums over fixed spans of a context, for rows whose bits must not depend on how they were launched.

A row sums each span of positions by itself and then adds the spans' sums in their order. Spans are at
absolute positions, so they are the same in any chunk. One program computes all spans of a chunk. The spans of
a decode are divided among several programs to use the whole device, and `add_spans` combines their sums: as
in Flash-Decoding (Dao et al. 2023), but with the same additions as in the chunk.
"""

import torch
from torch import Tensor

from kernels.language import tl, triton
from kernels.launch import next_power_of_2
from kernels.paged_attention.kernel import MAX_TILE, normalise

# A row's span is a constant: it is part of what a row's bits depend on. With fewer positions, adding up costs
# more than another program saves. A span that grew with the longest context would leave a short one of the
# same model in one piece.
SPAN = 4 * MAX_TILE
# Of the kernel that adds them up: a row for each program, and so many spans whose loads do not wait for each
# other, as their sums have to.
NUM_WARPS = 1
AT_ONCE = tl.constexpr(8)


def count_spans(capacity: int, window: int | None, span: int) -> int:
    """The most spans that one token may see in tables of so many positions, at least 1."""
    num_spans = -(-capacity // span)
    return max(1, num_spans if window is None else min(num_spans, -(-window // span) + 1))


def make_partials(query: Tensor, num_parts: int) -> tuple[Tensor, Tensor]:
    """Return float32 buffers for sums over parts of a context, (m, total) and acc; tiny ones for one part.

    [2, num_tokens, num_q_heads, num_parts] and [num_tokens, num_q_heads, num_parts, head_dim]
    """
    num_tokens, num_q_heads, head_dim = query.shape
    rows = (num_tokens, num_q_heads, num_parts) if num_parts > 1 else (1, 1, 1)
    stats = torch.empty((2, *rows), dtype=torch.float32, device=query.device)
    return stats, torch.empty((*rows, head_dim), dtype=torch.float32, device=query.device)


@triton.jit
def add_span(m, total, acc, m_span, total_span, acc_span):
    """Return the sums of a row with one more span; a span in which it sees nothing changes none of them.

    Fused operations are explicit: a compiler might choose differently in different kernels.
    """
    m_next = tl.maximum(m, m_span)
    m_finite = tl.where(m_next == float("-inf"), 0.0, m_next)
    shrink = tl.exp2(m - m_finite)
    weight = tl.exp2(m_span - m_finite)
    total = tl.fma(total, shrink, total_span * weight)
    acc = tl.fma(acc, tl.broadcast_to(shrink[:, None], acc.shape), acc_span * weight[:, None])
    return m_next, total, acc


@triton.jit(do_not_specialize=["max_spans", "window"])
def _add_spans_kernel(
    partial_stats_ptr,
    partial_acc_ptr,
    context_lens_ptr,
    cu_ptr,
    sinks_ptr,
    out_ptr,
    max_spans,
    window,
    SPAN: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
):
    """Write the output of one query head of a sequence whose spans had programs of their own."""
    seq = tl.program_id(0)
    head = tl.program_id(1)
    token = tl.load(cu_ptr + seq).to(tl.int64)
    last = tl.load(context_lens_ptr + seq)
    first = tl.zeros_like(last)
    if window is not None:
        first = tl.maximum(last - window, 0)
    num_spans = tl.cdiv(last, SPAN) - first // SPAN
    if (tl.load(cu_ptr + seq + 1) - token != 1) | (num_spans <= 1):
        return
    dims = tl.arange(0, HEAD_PAD)
    real = (dims < HEAD_DIM)[None, :]
    row = token * tl.num_programs(1) + head
    totals_ptr = partial_stats_ptr + tl.num_programs(0).to(tl.int64) * tl.num_programs(1) * max_spans
    one = tl.zeros([1], tl.int32)
    m = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    acc = tl.zeros([1, HEAD_PAD], tl.float32)
    for begin in range(0, num_spans, AT_ONCE):
        for index in tl.static_range(AT_ONCE):
            there = begin + index + one < num_spans
            part = row * max_spans + begin + index + one
            acc_span = tl.load(
                partial_acc_ptr + part[:, None] * HEAD_DIM + dims[None, :],
                mask=real & there[:, None],
                other=0.0,
            )
            m_span = tl.load(partial_stats_ptr + part, mask=there, other=float("-inf"))
            total_span = tl.load(totals_ptr + part, mask=there, other=0.0)
            m, total, acc = add_span(m, total, acc, m_span, total_span, acc_span)
    sink = None
    if sinks_ptr is not None:
        sink = tl.load(sinks_ptr + head + one)
    out = normalise(m, total, acc, sink)
    tl.store(out_ptr + row * HEAD_DIM + dims[None, :], out.to(out_ptr.dtype.element_ty), mask=real)


def add_spans(
    stats: Tensor,
    acc: Tensor,
    context_lens: Tensor,
    cu_seqlens_q: Tensor,
    sinks: Tensor | None,
    window: int | None,
    span: int,
    out: Tensor,
) -> None:
    """Write the rows of `out` [num_seqs, num_q_heads, head_dim] whose sums are in `stats` and `acc`.

    These are chunks of one token that see more than one span.
    """
    num_seqs, num_q_heads, head_dim = out.shape
    _add_spans_kernel[(num_seqs, num_q_heads)](
        stats,
        acc,
        context_lens,
        cu_seqlens_q,
        sinks,
        out,
        stats.shape[-1],
        window,
        SPAN=span,
        HEAD_DIM=head_dim,
        HEAD_PAD=next_power_of_2(head_dim),
        num_warps=NUM_WARPS,
    )
