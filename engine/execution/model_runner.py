"""One forward pass of a ragged batch over the paged pool.

On a CPU the step of a deterministic model that is not native is padded to whole row tiles: with tokens that
are not stored and that no token attends to, and with rows of logits that are dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.errors import ModelRefused
from engine.execution.decode_graphs import DecodeGraphs, OnRecorded, Record
from engine.kv.kv_pool import KVHeads, KVPool, PoolPart
from engine.kv.quantised_rows import QuantisedRows
from engine.kv.rows import KVRows, PoolRows
from engine.model.attention.attention import AttentionStep, CpuAttention, KernelAttention, LayerOrder
from engine.model.attention.step_batch import StepBatch
from engine.model.attention.tiled_attention import Heights, TiledAttention
from engine.model.deterministic.row_tiles import BASE_ROWS, padded_rows
from engine.model.model import Model
from kernels.span_sums.kernel import SPAN


class Group(Protocol):
    """Other processes that compute parts of the same steps."""

    def forward(self, batch: StepBatch, run: Callable[[StepBatch], Tensor]) -> Tensor:
        """Compute a step with the others; `run` computes this process's part. Return the logits."""
        ...


class ModelRunner:
    """Runs `model` over `pool`; one step at a time, from one thread.

    A model that is a part of one reads and writes its own heads and layers of the pool, which may have no
    other heads, and computes each step with the `group` of the others.
    """

    def __init__(self, model: Model, pool: KVPool, group: Group | None = None) -> None:
        expected = model.block_layout(pool.layout.block_size)
        own = None if model.part is None else model.part.share(model.facts.num_kv_heads)
        has_own_heads = own is not None and pool.layout == replace(
            expected, num_kv_heads=own.stop - own.start
        )
        if not (pool.layout == expected or has_own_heads) or pool.device != model.device:
            raise ValueError(
                f"pool is {pool.layout} on {pool.device}; accepted: {expected} on {model.device}, the model's"
            )
        self.model = model
        self.pool = pool
        self._group = group
        self._heads: KVHeads = pool
        if not has_own_heads and (own is not None or model.stage is not None):
            self._heads = PoolPart(pool, own, None if model.stage is None else model.stage.layers)
        self._rows: KVRows | None = None
        if model.device.type == "cpu":
            is_8bit = pool.layout.stored is not None
            self._rows = QuantisedRows(self._heads) if is_8bit else PoolRows(self._heads)
        self._share = model.facts.num_q_heads // model.facts.num_kv_heads
        self._heights = Heights.agreeing(model.facts.head_dim, self._share, model.dtype)
        self._graphs: DecodeGraphs | None = None
        self._has_tiles = model.is_deterministic and self._rows is not None and not model.fusion.is_native
        has_spans = model.is_deterministic and self._rows is None
        self.span = SPAN if has_spans else None
        """Positions that attention sums at a time, if kernels compute a deterministic model; else None."""

    def record_decodes(self, max_num_seqs: int, record: Record, on_recorded: OnRecorded) -> None:
        """Record decode-only steps of up to `max_num_seqs` rows, to replay them from now on; change no block.

        Raises ModelRefused for a model whose step cannot be recorded.
        """
        facts = self.model.facts
        try:
            self._graphs = DecodeGraphs(
                self._run,
                record,
                on_recorded,
                max_num_seqs=max_num_seqs,
                max_blocks=-(-facts.max_context // self.pool.layout.block_size),
                max_context=facts.max_context,
                device=self.model.device,
            )
        except RuntimeError as error:
            raise ModelRefused(
                facts.directory, "a decode step", f"cannot be recorded ({error})", "--no-cuda-graphs"
            ) from error

    @property
    def replays_decodes(self) -> bool:
        """True if steps of one token in each row are replayed."""
        return self._graphs is not None

    def forward(self, batch: StepBatch) -> Tensor:
        """Write the step's keys and values to the pool; return logits [R, vocab_size] of `batch.logit_rows`.

        On a GPU it returns once the step is queued in the current stream. The logits have the model's dtype,
        are inference tensors, which cannot be changed outside inference mode, and are valid until the next
        step is queued.
        """
        # Graphs are recorded without adapters.
        if self._graphs is not None and batch.adapters is None and self._graphs.holds(batch):
            return self._graphs.forward(batch)
        return self.run_part(batch) if self._group is None else self._group.forward(batch, self.run_part)

    def run_part(self, batch: StepBatch) -> Tensor:
        """Compute this process's part of a step; return its logits, none in a stage that is not the last."""
        if self.model.stage is not None and not self.model.stage.is_last:
            batch = batch.without_logits()
        return self._run(batch)

    def _run(self, batch: StepBatch) -> Tensor:
        num_logits = len(batch.logit_rows)
        if self._has_tiles:
            batch = pad_step(batch, self.model.facts.vocab_size)
        order = LayerOrder()
        step = self._attention(batch, order)
        logits = self.model.forward(batch.token_ids, batch.positions, batch.logit_rows, step, batch.adapters)
        num_layers = self._heads.layout.num_layers
        assert order.next_layer == num_layers, f"{order.next_layer} of {num_layers} layers attended"
        return logits[:num_logits]

    def _attention(self, batch: StepBatch, order: LayerOrder) -> AttentionStep:
        if self._rows is None:
            return KernelAttention(self._heads, batch, order, span=self.span)
        if self._has_tiles:
            return TiledAttention(self._rows, batch, order, self._share, self._heights)
        return CpuAttention(self._heads, self._rows, batch, order)


def pad_step(batch: StepBatch, vocab_size: int) -> StepBatch:
    """Return the step padded to whole tiles of tokens and of rows of logits."""
    missing = padded_rows(len(batch.token_ids)) - len(batch.token_ids)
    # Rows of odd length fill a whole number of vectors only in two tiles.
    multiple = BASE_ROWS * (1 + vocab_size % 2)
    num_logits = len(batch.logit_rows)
    last = batch.logit_rows[-1:] if num_logits else torch.zeros(1, dtype=torch.int64)
    repeated = last.expand(padded_rows(max(1, num_logits), multiple) - num_logits)
    return replace(
        batch,
        token_ids=F.pad(batch.token_ids, (0, missing)),
        positions=F.pad(batch.positions, (0, missing)),
        slot_mapping=F.pad(batch.slot_mapping, (0, missing), value=-1),
        logit_rows=torch.cat((batch.logit_rows, repeated)),
    )
