"""The arguments that both attention ops take, and their checks."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.launch import FLOAT_DTYPES, KVLayerShape, check_kv_layer, check_tensor


@dataclass(frozen=True, slots=True)
class Softmax:
    """How scores become weights.

    scale            multiplies q·k
    sliding_window   key position n is visible for query position p iff p - sliding_window < n <= p
    softcap          scores become softcap · tanh(scores / softcap), before the mask
    sinks            [num_q_heads], one more logit per query head in the denominator, unscaled, uncapped
    """

    scale: float
    sliding_window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise ValueError(f"scale is {self.scale}; accepted: a finite number above 0")
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ValueError(f"sliding_window is {self.sliding_window}; accepted: None, or at least 1")
        if self.softcap is not None and not (math.isfinite(self.softcap) and self.softcap > 0):
            raise ValueError(f"softcap is {self.softcap}; accepted: None, or a finite number above 0")


def check_attention(
    query: Tensor,
    kv_layer: Tensor,
    kv_scales: Tensor | None,
    block_tables: Tensor,
    context_lens: Tensor,
    softmax: Softmax,
) -> KVLayerShape:
    """Everything that is known without reading a tensor's content, which on a GPU would stall the step."""
    shape, device = check_kv_layer(kv_layer, kv_scales), kv_layer.device
    dtypes = (kv_layer.dtype,) if kv_scales is None else FLOAT_DTYPES
    check_tensor("query", query, ("num_tokens", "num_q_heads", shape.head_dim), dtypes, device)
    num_q_heads, num_kv_heads = query.shape[1], shape.num_kv_heads
    if num_q_heads == 0 or num_kv_heads == 0 or num_q_heads % num_kv_heads:
        raise ValueError(
            f"query has {num_q_heads} heads; accepted: a multiple of kv_layer's {num_kv_heads} KV heads"
        )
    check_tensor("context_lens", context_lens, ("num_seqs",), (torch.int32,), device)
    tables = (context_lens.shape[0], "max_blocks")
    check_tensor("block_tables", block_tables, tables, (torch.int32,), device)
    check_tensor("sinks", softmax.sinks, (num_q_heads,), FLOAT_DTYPES, device)
    return shape
