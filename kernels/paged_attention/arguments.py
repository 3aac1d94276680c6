"""The arguments that both attention ops take, and their checks."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.checks import (
    FLOAT_DTYPES,
    KVLayerShape,
    check_dtype,
    check_kv_layer,
    check_rows,
    check_same_device,
    check_shape,
)


@dataclass(frozen=True, slots=True)
class Softmax:
    """How scores become weights.

    scale            multiplies q·k
    sliding_window   key position n is visible for query position p iff p - sliding_window < n <= p
    softcap          scores become softcap · tanh(scores / softcap), before the mask
    sinks            [num_q_heads], one more logit per query head in the denominator, unscaled, uncapped
    """

    scale: float
    sliding_window: int | None
    softcap: float | None
    sinks: Tensor | None

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
    shape = check_kv_layer(kv_layer, kv_scales)
    check_shape("query", query, "num_tokens", "num_q_heads", shape.head_dim)
    check_dtype("query", query, *FLOAT_DTYPES)
    if kv_scales is None:
        check_dtype("query", query, kv_layer.dtype)
    check_rows("query", query)
    _check_group(query.shape[1], shape.num_kv_heads)
    check_shape("context_lens", context_lens, "num_seqs")
    check_shape("block_tables", block_tables, context_lens.shape[0], "max_blocks")
    for field, tensor in (("context_lens", context_lens), ("block_tables", block_tables)):
        check_dtype(field, tensor, torch.int32)
        check_rows(field, tensor)
    if softmax.sinks is not None:
        check_shape("sinks", softmax.sinks, query.shape[1])
        check_dtype("sinks", softmax.sinks, *FLOAT_DTYPES)
        check_rows("sinks", softmax.sinks)
    check_same_device(
        kv_layer.device,
        [
            ("query", query),
            ("block_tables", block_tables),
            ("context_lens", context_lens),
            ("sinks", softmax.sinks),
        ],
    )
    return shape


def _check_group(num_q_heads: int, num_kv_heads: int) -> None:
    if num_q_heads == 0 or num_kv_heads == 0 or num_q_heads % num_kv_heads:
        raise ValueError(
            f"query has {num_q_heads} heads; accepted: a multiple of kv_layer's {num_kv_heads} KV heads"
        )
