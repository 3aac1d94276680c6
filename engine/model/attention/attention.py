"""The attention function that transformers' models call, reading and writing the paged pool.

In every architecture of the allow-list, transformers passes unknown keywords of `forward` down to the
attention function. So the context of a step is the explicit keyword `step`, and nothing is global: two models
can run in one process, and a model that drops the keyword fails at load instead of reading another step's
context.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

from engine.kv.kv_pool import KVHeads, all_layers
from engine.model.attention.step_batch import StepBatch
from kernels.chunked_prefill import chunked_prefill
from kernels.native.layers import Paged
from kernels.paged_attention.arguments import Softmax
from kernels.paged_decode import paged_decode
from kernels.rope_store_kv import HeadNorms, rope_store_kv
from kernels.store_kv import store_kv

# No mask is registered under this name, so transformers builds none: the step decides what is visible.
ATTENTION = "baton_paged"


class AttentionStep(Protocol):
    """One step's attention, called once for each layer in order."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, softmax: Softmax) -> Tensor:
        """Store key and value [T, num_kv_heads, head_dim].

        Return the query's output [T, num_q_heads, head_dim].
        """


def paged_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    step: AttentionStep,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_ignored: Any,
) -> tuple[Tensor, None]:
    """Attend with query [1, num_q_heads, T, D], key [1, num_kv_heads, T, D], value [1, num_kv_heads, T, V].

    Return [1, T, num_q_heads, V]. Where values are narrower than keys, they are stored as wide as keys.
    """
    assert attention_mask is None, "a model built a mask that the paged pool cannot honour"
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer: Any = module.layer_idx
    width = value.shape[-1]
    if width < key.shape[-1]:
        value = F.pad(value, (0, key.shape[-1] - width))
    output = step.attend(
        layer,
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        Softmax(scale, sliding_window or None, softcap or None, s_aux),
    )
    return output[None, ..., :width], None


class LayerOrder:
    """Counts layers, so that a skipped, repeated or misplaced layer is noticed."""

    __slots__ = ("next_layer",)

    def __init__(self) -> None:
        self.next_layer = 0

    def enter(self, layer: int) -> None:
        assert layer == self.next_layer, f"layer {layer} called where {self.next_layer} was due"
        self.next_layer += 1


class RotatingStep(ABC):
    """The attention of one batch over the pool, for models of transformers and for fused ones."""

    __slots__ = ("_batch", "_order", "_pool")

    def __init__(self, pool: KVHeads, batch: StepBatch, order: LayerOrder) -> None:
        self._pool = pool
        self._batch = batch
        self._order = order

    @abstractmethod
    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, softmax: Softmax) -> Tensor:
        """Store key and value [T, num_kv_heads, head_dim], and attend."""

    @abstractmethod
    def _attend(self, layer: int, query: Tensor, softmax: Softmax) -> Tensor:
        """Attend with query [T, num_q_heads, head_dim], whose keys and values are stored."""

    def rotate_and_attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rotation: tuple[Tensor, Tensor],
        norms: HeadNorms,
        softmax: Softmax,
    ) -> Tensor:
        """Norm and rotate query and key by cos and sin [T, R], then do as `attend` does.

        The layers of a fused model (`engine.model.fusion`) call it in place of `attend`.
        """
        self._order.enter(layer)
        kv_layer, kv_scales = self._pool.layer(layer), self._pool.scales(layer)
        slots = self._batch.slot_mapping
        rotated = rope_store_kv(query, key, value, *rotation, kv_layer, slots, kv_scales, norms=norms)
        return self._attend(layer, rotated, softmax)

    def paged(self, num_layers: int) -> Paged:
        """Return where the tokens of all layers belong, for layers that attend by themselves."""
        for layer in range(num_layers):
            self._order.enter(layer)
        batch = self._batch
        return Paged(
            *all_layers(self._pool),
            batch.slot_mapping,
            batch.block_tables,
            batch.context_lens,
            batch.cu_seqlens_q,
            batch.logit_rows,
        )


class KernelAttention(RotatingStep):
    """The attention of one batch on a GPU: one launch stores, one attends.

    Decode-only steps use the kernel that splits the context. In mixed steps decodes are chunks of one token.
    In a deterministic model they always are, and each context is summed in fixed spans of `span` positions,
    so bits do not depend on the kind of step.
    """

    __slots__ = ("_span",)

    def __init__(
        self, pool: KVHeads, batch: StepBatch, order: LayerOrder, *, span: int | None = None
    ) -> None:
        super().__init__(pool, batch, order)
        self._span = span

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, softmax: Softmax) -> Tensor:
        self._order.enter(layer)
        kv_layer, kv_scales = self._pool.layer(layer), self._pool.scales(layer)
        store_kv(key, value, kv_layer, self._batch.slot_mapping, kv_scales)
        return self._attend(layer, query, softmax)

    def _attend(self, layer: int, query: Tensor, softmax: Softmax) -> Tensor:
        batch, kv_layer, kv_scales = self._batch, self._pool.layer(layer), self._pool.scales(layer)
        paged = query, kv_layer, batch.block_tables, batch.context_lens
        if batch.max_query_len == 1 and self._span is None:
            return paged_decode(*paged, softmax, kv_scales)
        return chunked_prefill(*paged, batch.cu_seqlens_q, softmax, kv_scales, span=self._span)


AttentionInterface.register(ATTENTION, paged_attention)
