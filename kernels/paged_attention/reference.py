"""Attention of one sequence's queries over its paged KV, in plain PyTorch."""

import torch
from torch import Tensor

from kernels.paged_attention.arguments import Softmax


def attend_paged(
    query: Tensor,
    kv_layer: Tensor,
    kv_scales: Tensor | None,
    block_table: Tensor,
    context_len: int,
    softmax: Softmax,
) -> Tensor:
    """Causal attention of the last `len(query)` positions of a context over its blocks.

    query [num_queries, num_q_heads, head_dim], block_table [max_blocks]. KV that no query sees is not read:
    its blocks may have been given away.
    """
    first = 0
    if softmax.sliding_window is not None:
        first = max(0, context_len - query.shape[0] + 1 - softmax.sliding_window)
    positions = torch.arange(first, context_len, device=kv_layer.device)
    block_size = kv_layer.shape[2]
    blocks, offsets = block_table[positions // block_size].long(), positions % block_size
    key, value = kv_layer[blocks, 0, offsets], kv_layer[blocks, 1, offsets]
    if kv_scales is not None:
        key = key.float() * kv_scales[blocks, 0, :, offsets][..., None]
        value = value.float() * kv_scales[blocks, 1, :, offsets][..., None]
    return attend(query, key, value, softmax)


def attend(query: Tensor, key: Tensor, value: Tensor, softmax: Softmax) -> Tensor:
    """Causal attention of the last queries of a context.

    query [q, num_q_heads, head_dim] is at positions n - q to n - 1; key, value [n, num_kv_heads,
    head_dim]. Computed in float32, in float64 if the query is; returned in the query's dtype. A query that
    sees no key gives zeros.
    """
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    group = query.shape[1] // key.shape[1]
    k = key.to(dtype).repeat_interleave(group, dim=1)
    v = value.to(dtype).repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,nhd->hqn", query.to(dtype), k) * softmax.scale
    if softmax.softcap is not None:
        scores = softmax.softcap * torch.tanh(scores / softmax.softcap)
    visible = _visible(query.shape[0], key.shape[0], softmax.sliding_window, query.device)
    weights = _weights(scores.masked_fill(~visible, float("-inf")), softmax.sinks)
    weights = weights.masked_fill(~visible, 0.0)
    return torch.einsum("hqn,nhd->qhd", weights, v).to(query.dtype)


def _visible(num_queries: int, context_len: int, window: int | None, device: torch.device) -> Tensor:
    """[num_queries, context_len], True where the query sees the key."""
    n = torch.arange(context_len, device=device)[None, :]
    p = torch.arange(context_len - num_queries, context_len, device=device)[:, None]
    causal = n <= p
    return causal if window is None else causal & (n > p - window)


def _weights(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax over the last dimension of [heads, q, n], the sink's share left out of what is returned."""
    if sinks is None:
        return torch.softmax(scores, dim=-1)
    sink = sinks.to(scores.dtype)[:, None, None].expand(-1, scores.shape[1], 1)
    return torch.softmax(torch.cat([scores, sink], dim=-1), dim=-1)[..., :-1]
