"""Linear layers with LoRA adapters: y += B_i (A_i x) for the rows of adapter i (Hu et al., "LoRA", 2021).

The scale of an adapter is part of its B. All adapters of a layer are stacked, padded with zeros to the
largest rank. Native ops compute them where they compute in the model's dtype, PyTorch elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from engine.model.attention.step_batch import AdapterGroup, AdapterRows
from kernels.native.adapters import AdapterBlocks, AdapterParts, AdapterWeights, add_adapters
from kernels.native.ops import supports


class AdapterStep:
    """The adapters of the rows of the step under way, which all layers of a model share."""

    def __init__(self) -> None:
        self.rows: AdapterRows | None = None

    @contextmanager
    def running(self, rows: AdapterRows) -> Iterator[None]:
        """Let layers compute for these rows meanwhile."""
        self.rows = rows
        try:
            yield
        finally:
            self.rows = None

    def blocks(self) -> AdapterBlocks | None:
        """Return the rows for native ops, if any has an adapter."""
        return None if self.rows is None else self.rows.blocks


class AdaptedLinear(nn.Module):
    """A linear layer of any kind, and what the adapters of a step's rows add to it."""

    def __init__(self, base: nn.Module, weights: Sequence[AdapterWeights], step: AdapterStep) -> None:
        super().__init__()
        self.base = base
        self._weights = tuple(weights)
        self.parts = AdapterParts(weights)
        self._step = step

    def forward(self, hidden: Tensor) -> Tensor:
        """Multiply [..., inputs] to [..., outputs]; the dimensions before the last are the rows of a step."""
        output: Tensor = self.base(hidden)
        rows = self._step.rows
        if rows is None:
            return output
        inputs, outputs = hidden.flatten(0, -2).contiguous(), output.view(-1, output.shape[-1])
        if supports(hidden):
            add_adapters(inputs, outputs, self.parts, rows.blocks)
        else:
            for group in rows.groups:
                for weights in self._weights:
                    add_group(inputs, outputs, weights, group)
        return output


def add_group(inputs: Tensor, outputs: Tensor, weights: AdapterWeights, group: AdapterGroup) -> None:
    """Add what the adapters of a group make of inputs [T, inputs] to a layer's outputs [T, outputs]."""
    down, up = weights.down[group.slots], weights.up[group.slots]
    added = torch.bmm(torch.bmm(inputs[group.rows], down.transpose(1, 2)), up).flatten(0, 1)
    if group.kept is not None:
        added = added[group.kept]
    own = outputs[:, weights.first : weights.first + up.shape[2]]
    own.index_add_(0, group.targets, added)
