"""The reference of `paged_decode` in plain PyTorch."""

import torch
from torch import Tensor

from kernels.paged_attention.arguments import Softmax
from kernels.paged_attention.reference import attend_paged


def paged_decode_reference(
    query: Tensor,
    kv_layer: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    softmax: Softmax,
    kv_scales: Tensor | None = None,
) -> Tensor:
    """Arguments and result as for `kernels.paged_decode.paged_decode`."""
    out = torch.zeros(query.shape, dtype=query.dtype, device=query.device)
    for seq, context_len in enumerate(context_lens.tolist()):
        if context_len > 0:
            out[seq : seq + 1] = attend_paged(
                query[seq : seq + 1], kv_layer, kv_scales, block_tables[seq], context_len, softmax
            )
    return out
