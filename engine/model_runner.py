"""One forward pass of a ragged batch over the paged pool."""

from __future__ import annotations

from torch import Tensor

from engine.attention import AttentionStep, KernelAttention, LayerOrder
from engine.cpu_attention import CpuAttention, PoolRows
from engine.kv_pool import KVPool
from engine.model import Model
from engine.step_batch import StepBatch


class ModelRunner:
    """Runs `model` over `pool`; one step at a time, from one thread."""

    def __init__(self, model: Model, pool: KVPool) -> None:
        expected = model.block_layout(pool.layout.block_size)
        if pool.layout != expected or pool.device != model.device:
            raise ValueError(
                f"pool is {pool.layout} on {pool.device}; accepted: {expected} on {model.device}, the model's"
            )
        self.model = model
        self.pool = pool
        self._rows = PoolRows(pool) if model.device.type == "cpu" else None

    def forward(self, batch: StepBatch) -> Tensor:
        """Write the step's keys and values to the pool; logits [R, vocab_size] of `batch.logit_rows`.

        The logits have the model's dtype and were made in inference mode: outside it they cannot be changed.
        """
        order = LayerOrder()
        step = self._attention(batch, order)
        logits = self.model.forward(batch.token_ids, batch.positions, batch.logit_rows, step)
        num_layers = self.model.facts.num_layers
        assert order.next_layer == num_layers, f"{order.next_layer} of {num_layers} layers attended"
        return logits

    def _attention(self, batch: StepBatch, order: LayerOrder) -> AttentionStep:
        if self._rows is None:
            return KernelAttention(self.pool, batch, order)
        return CpuAttention(self._rows, batch, order)
