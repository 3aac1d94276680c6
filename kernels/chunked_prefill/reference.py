"""The reference of `chunked_prefill` in plain PyTorch."""

from itertools import pairwise

import torch
from torch import Tensor

from kernels.paged_attention.arguments import Softmax
from kernels.paged_attention.reference import attend_paged


def chunked_prefill_reference(
    query: Tensor,
    kv_layer: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    cu_seqlens_q: Tensor,
    softmax: Softmax,
    kv_scales: Tensor | None = None,
) -> Tensor:
    """Arguments and result as for `kernels.chunked_prefill.chunked_prefill`."""
    out = torch.zeros(query.shape, dtype=query.dtype, device=query.device)
    chunks = pairwise(cu_seqlens_q.tolist())
    for seq, ((begin, end), context_len) in enumerate(zip(chunks, context_lens.tolist(), strict=True)):
        if begin < end:
            out[begin:end] = attend_paged(
                query[begin:end], kv_layer, kv_scales, block_tables[seq], context_len, softmax
            )
    return out
