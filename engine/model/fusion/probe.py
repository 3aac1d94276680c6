"""Runs a model, or one of its layers, on a few tokens before and after fusion, and compares the results.

The step uses the same ops as in service, over a pool of two blocks. What a layer adds to the residual is
compared, since beside a large residual a wrong layer would look right.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engine.errors import FusionDiffers
from engine.kv.kv_pool import KVPool
from engine.model.attention.attention import KernelAttention, LayerOrder
from engine.model.attention.step_batch import StepBatch
from engine.model.fusion.modules import Decoder, Layer, Norm, Rotation

NUM_TOKENS = 12
SMALL = 1 / 64
"""Factor for random rows: it makes them smaller than what a layer adds to them."""

# Fused ops round in fewer places, which differs by up to 2^-9 in bfloat16. Large biases, massive activations
# and many layers amplify that some ten times. A missing or misplaced part differs by about 1, the whole
# value. transformers rounds a float64 norm to float32; ours does not.
LAYER_TOLERANCES = {torch.float64: 1e-4, torch.float32: 1e-3, torch.bfloat16: 0.2}
MODEL_TOLERANCES = {torch.float64: 1e-4, torch.float32: 1e-3, torch.bfloat16: 0.5}


class Probe:
    """One sequence of NUM_TOKENS random tokens, with the pool and batch to compute it."""

    def __init__(self, pool: KVPool, vocab_size: int, hidden_size: int) -> None:
        """Compute in the second block of `pool`, which must have NUM_TOKENS slots."""
        self._pool = pool
        generator = torch.Generator().manual_seed(1)
        ids = torch.randint(vocab_size, (NUM_TOKENS,), generator=generator)
        rows = torch.randn(NUM_TOKENS, hidden_size, generator=generator) * SMALL
        self._rows = rows.to(pool.device, pool.layout.dtype)
        second = torch.ones(1, 1, dtype=torch.int64)
        batch = StepBatch.of_chunks(
            [(0, NUM_TOKENS)], second, pool.layout.block_size, lambda _: ids, pool.device
        )
        self.positions = batch.positions
        self._batch = replace(batch, logit_rows=batch.positions)

    def added_by_stock(self, layer: Any, index: int, rotation: Rotation) -> Tensor:
        """Return what transformers' decoder layer adds to random rows, [NUM_TOKENS, hidden_size]."""
        output = layer(
            self._rows[None],
            attention_mask=None,
            position_ids=self.positions[None],
            position_embeddings=rotation,
            step=self._step(index),
        )
        return self._added(output[0])

    def added_by_fused(self, layer: Layer, index: int, first_norm: Norm, rotation: Rotation) -> Tensor:
        residual = self._rows.clone()
        layer(first_norm(residual), residual, rotation, self._step(index))
        return self._added(residual)

    def before_layers(self, module: Any) -> Tensor:
        """Return the input of the first layer of a `...ForCausalLM`, [NUM_TOKENS, hidden_size].

        The norms remove a wrong factor, so logits would hardly show it.
        """
        entered: list[Tensor] = []
        hook = module.model.layers[0].register_forward_pre_hook(lambda _, given: entered.append(given[0][0]))
        self.logits(module)
        hook.remove()
        return entered[0]

    def embedded(self, decoder: Decoder) -> Tensor:
        return decoder.embed(self._batch.token_ids)

    def logits(self, module: Any) -> Tensor:
        """Return a `...ForCausalLM`'s logits [NUM_TOKENS, vocab_size], fused or not, less each row's mean."""
        batch = self._batch
        logits: Tensor = module(
            input_ids=batch.token_ids[None],
            position_ids=batch.positions[None],
            use_cache=False,
            logits_to_keep=batch.logit_rows,
            step=self._step(0),
        ).logits[0]
        return logits - logits.mean(dim=-1, keepdim=True)

    def _added(self, output: Tensor) -> Tensor:
        return output.double() - self._rows.double()

    def _step(self, first_layer: int) -> KernelAttention:
        order = LayerOrder()
        order.next_layer = first_layer
        return KernelAttention(self._pool, self._batch, order)


def check_same(part: str, got: Tensor, want: Tensor, tolerance: float) -> None:
    """Raise FusionDiffers if most rows are further apart than `tolerance`, relative to their lengths.

    Rounding may send a single row to another expert of a mixture; a wrong fusion changes most rows.
    """
    got, want = got.double(), want.double()
    lengths = torch.linalg.vector_norm(want, dim=-1).clamp(min=torch.finfo(torch.float64).tiny)
    difference = float((torch.linalg.vector_norm(got - want, dim=-1) / lengths).median())
    if not difference <= tolerance:  # NaN counts as a difference
        raise FusionDiffers(part, difference, tolerance)
