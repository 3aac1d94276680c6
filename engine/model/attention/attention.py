"""The attention function that transformers' models call, and what it does over the paged pool.

In every architecture of the allow-list, transformers passes unknown keywords of `forward` down to the
attention function. So the context of a step is the explicit keyword `step`, and nothing is global: two models
can run in one process, and a model that drops the keyword fails at load instead of reading another step's
context.

On a GPU, kernels attend. On a CPU, batching is selective: one call of `kernels.chunked_prefill` attends, and
reads the pool where it is, if it was compiled for this processor. Otherwise each chunk attends alone, and
decodes attend in groups of similar length. The visible keys and values of a chunk, or of such a group, are
gathered into a scratch buffer, row by row through the block tables, and one call of torch attends. Rows and
masks depend only on the step and the window, so they are made once and used by every layer
(`engine.kv.rows`). Selective batching: Yu et al., "Orca", OSDI 2022.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

from engine.kv.kv_pool import KVHeads
from engine.kv.rows import KVRows, rows_at
from engine.model.attention.step_batch import StepBatch
from kernels.chunked_prefill import chunked_prefill
from kernels.native import ops as native
from kernels.native.layers import Paged
from kernels.paged_attention.arguments import Softmax
from kernels.paged_decode import paged_decode
from kernels.rope_store_kv import HeadNorms, rope_store_kv
from kernels.store_kv import store_kv

# No mask is registered under this name, so transformers builds none: the step decides what is visible.
ATTENTION = "baton_paged"

# Measured on 2 KV heads of 64 in fp32, contexts of 64 to 2048 and 1 to 32 decodes: a group costs as much as
# reading some 250 more positions, and beyond a few MiB the gathered copy falls out of the cache.
MAX_PADDING = 256
MAX_GATHER_BYTES = 4 << 20


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
            *self._pool.all_layers,
            batch.slot_mapping,
            batch.block_tables,
            batch.context_lens,
            batch.cu_seqlens_q,
            batch.logit_rows,
        )


class KernelAttention(RotatingStep):
    """The attention of one batch on a GPU: one launch stores, one attends.

    Decodes use the kernel that splits contexts, and chunks behind them in a step the one for chunks. In a
    deterministic model decodes are chunks of one token, and each context is summed in fixed spans of `span`
    positions, so bits do not depend on the kind of step.
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
        num_decodes = batch.num_decodes if self._span is None else 0
        if num_decodes == len(batch.context_lens):
            return paged_decode(*paged, softmax, kv_scales)
        starts = batch.cu_seqlens_q
        return chunked_prefill(*paged, starts, softmax, kv_scales, span=self._span, num_decodes=num_decodes)


@dataclass(frozen=True, slots=True)
class Group:
    """b sequences with q query tokens each that attend in one call, over N gathered positions.

    tokens  [b * q] int64, indexes into the step's T tokens
    rows    [b, N] int64, pool rows; padding repeats a sequence's last position, so that every row read is
            finite: a masked NaN would still be a NaN
    bias    [b, 1, q, N] 0 where visible, else -inf; None if everything is
    """

    tokens: Tensor
    rows: Tensor
    bias: Tensor | None
    query_len: int


class CpuAttention(RotatingStep):
    """The attention of one batch on a CPU over `pool`, of which `rows` is another view.

    What only some models need is made when it is first asked for: native layers attend by themselves.
    """

    __slots__ = ("_groups", "_rows", "_stored")

    def __init__(self, pool: KVHeads, rows: KVRows, batch: StepBatch, order: LayerOrder) -> None:
        super().__init__(pool, batch, order)
        self._rows = rows
        self._groups: dict[int | None, list[Group]] = {}
        self._stored: tuple[Tensor | None, Tensor] | None = None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, softmax: Softmax) -> Tensor:
        self._order.enter(layer)
        if self._stored is None:
            self._stored = self._stored_tokens()
        tokens, rows = self._stored
        if tokens is not None:
            key, value = key[tokens], value[tokens]
        self._rows.store(layer, rows, key, value)
        return self._attend(layer, query, softmax)

    def _stored_tokens(self) -> tuple[Tensor | None, Tensor]:
        """Return the tokens that are stored, None if all are, and their rows."""
        slots = self._batch.slot_mapping
        if int(slots.min()) >= 0:
            return None, self._rows.of_slots(slots)
        tokens = (slots >= 0).nonzero().view(-1)
        return tokens, self._rows.of_slots(slots[tokens])

    def _attend(self, layer: int, query: Tensor, softmax: Softmax) -> Tensor:
        kv_layer, batch = self._pool.layer(layer), self._batch
        if native.attends(query, kv_layer):
            tables = batch.block_tables, batch.context_lens, batch.cu_seqlens_q
            return chunked_prefill(query, kv_layer, *tables, softmax, self._pool.scales(layer))
        groups = self._groups.get(softmax.sliding_window)
        if groups is None:
            groups = self._groups[softmax.sliding_window] = list(self._plan(softmax.sliding_window))
        output = torch.empty(query.shape, dtype=query.dtype)
        for group in groups:
            result = _attend_group(group, query, self._rows.gather(layer, group.rows), softmax)
            output.index_copy_(0, group.tokens, result)
        return output

    def _plan(self, window: int | None) -> Iterator[Group]:
        decodes = []
        bounds = pairwise(self._batch.cu_seqlens_q.tolist())
        lens = self._batch.context_lens.tolist()
        for seq, ((start, end), context_len) in enumerate(zip(bounds, lens, strict=True)):
            if end - start == 1:
                decodes.append((min(context_len, window or context_len), seq))
            else:
                yield self._chunk(seq, range(start, end), context_len, window)
        row_bytes = 2 * self._rows.width * self._rows.layout.dtype.itemsize
        for seqs, longest in group_by_length(decodes, MAX_GATHER_BYTES // row_bytes):
            yield self._decodes(seqs, longest, window)

    def _chunk(self, seq: int, tokens: range, context_len: int, window: int | None) -> Group:
        """Return the group of a chunk, whose tokens are these of the step."""
        done = context_len - len(tokens)
        first = max(0, done + 1 - window) if window else 0
        positions = torch.arange(first, context_len)
        queries = positions[done - first :, None]
        hidden = positions > queries
        if window:
            hidden |= positions <= queries - window
        rows = rows_at(self._rows, self._batch.block_tables[seq : seq + 1], positions[None])
        own = torch.arange(tokens.start, tokens.stop)
        return Group(own, rows, self._bias(hidden[None, None]), len(tokens))

    def _decodes(self, seqs: list[int], longest: int, window: int | None) -> Group:
        seq_index = torch.tensor(seqs)
        context_lens = self._batch.context_lens[seq_index, None].long()
        first = (context_lens - window).clamp_(min=0) if window else torch.zeros_like(context_lens)
        positions = first + torch.arange(longest)
        hidden = positions >= context_lens
        bias = self._bias(hidden[:, None, None]) if bool(hidden.any()) else None
        positions = torch.minimum(positions, context_lens - 1)
        tokens = self._batch.cu_seqlens_q[seq_index].long()
        rows = rows_at(self._rows, self._batch.block_tables[seq_index], positions)
        return Group(tokens, rows, bias, query_len=1)

    def _bias(self, hidden: Tensor) -> Tensor:
        return torch.zeros(hidden.shape, dtype=self._rows.layout.dtype).masked_fill_(hidden, float("-inf"))


def group_by_length(
    decodes: Sequence[tuple[int, int]], max_positions: int
) -> Iterator[tuple[list[int], int]]:
    """Split (length, sequence) pairs by length; yield each group's sequences and its longest length.

    A group of several sequences has at most `max_positions` positions, padding included, and at most
    MAX_PADDING padded ones.
    """
    group: list[int] = []
    longest = padding = 0
    for length, seq in sorted(decodes, reverse=True):
        padding += longest - length
        if group and (padding > MAX_PADDING or (len(group) + 1) * longest > max_positions):
            yield group, longest
            group = []
        if not group:
            longest, padding = length, 0
        group.append(seq)
    if group:
        yield group, longest


def _attend_group(group: Group, query: Tensor, kv: Tensor, softmax: Softmax) -> Tensor:
    """Return a group's output [b * q, num_q_heads, D] for query [T, num_q_heads, D] and gathered kv."""
    b, query_len = group.rows.shape[0], group.query_len
    keys, values = kv.transpose(2, 3)
    queries = query.index_select(0, group.tokens).view(b, query_len, *query.shape[1:])
    if softmax.softcap is not None or softmax.sinks is not None:
        output = _attend_by_scores(queries, keys, values, group.bias, softmax)
    elif query_len == 1:
        # The query heads that share a KV head become its rows, so that its keys are read once for all.
        folded = queries.view(b, keys.shape[1], -1, query.shape[2])
        output = F.scaled_dot_product_attention(folded, keys, values, group.bias, scale=softmax.scale)
    else:
        output = F.scaled_dot_product_attention(
            queries.transpose(1, 2), keys, values, group.bias, scale=softmax.scale, enable_gqa=True
        ).transpose(1, 2)
    return output.reshape(b * query_len, *query.shape[1:])


def _attend_by_scores(
    queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, softmax: Softmax
) -> Tensor:
    """Attend with soft caps or sinks, which the fused call cannot do.

    Takes queries [b, q, num_q_heads, D], keys and values [b, num_kv_heads, N, D]; the result is like queries.
    """
    b, query_len, num_q_heads, head_dim = queries.shape
    grouped = queries.transpose(1, 2).reshape(b, keys.shape[1], -1, head_dim)
    scores = torch.matmul(grouped, keys.transpose(2, 3)).mul_(softmax.scale)
    scores = scores.view(b, num_q_heads, query_len, -1)
    if softmax.softcap is not None:
        scores = scores.div_(softmax.softcap).tanh_().mul_(softmax.softcap)
    if bias is not None:
        scores += bias
    if softmax.sinks is None:
        weights = torch.softmax(scores, dim=-1)
    else:
        sinks = softmax.sinks.to(scores.dtype).view(1, -1, 1, 1).expand(b, -1, query_len, 1)
        weights = torch.softmax(torch.cat((scores, sinks), dim=-1), dim=-1)[..., :-1]
    output = torch.matmul(weights.reshape(*grouped.shape[:3], -1), values)
    return output.view(b, num_q_heads, query_len, head_dim).transpose(1, 2)


AttentionInterface.register(ATTENTION, paged_attention)
