"""Linear layers with LoRA adapters: y += B_i (A_i x) for the rows of adapter i (Hu et al., "LoRA", 2021).

The scale of an adapter is part of its B. All adapters of a layer have one rank, the largest; the others are
padded with zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.model.adapters.grouping import AdapterGroup


class AdapterStep:
    """The groups of the step under way, which all adapted layers of a model share."""

    def __init__(self) -> None:
        self.groups: tuple[AdapterGroup, ...] = ()

    @contextmanager
    def running(self, groups: tuple[AdapterGroup, ...]) -> Iterator[None]:
        """Let layers compute for these groups meanwhile."""
        self.groups = groups
        try:
            yield
        finally:
            self.groups = ()


@dataclass(frozen=True, slots=True)
class Part:
    """The adapters of consecutive outputs of a layer: `down` [N, R, inputs], `up` [N, R, outputs]."""

    begin: int
    """The first of the outputs."""
    down: Tensor
    up: Tensor

    def add_to(self, output: Tensor, rows: Tensor, group: AdapterGroup) -> None:
        """Add the products of the group's rows [G, M, inputs] to the outputs [T, outputs] of a layer."""
        down, up = self.down[group.slots], self.up[group.slots]
        added = torch.bmm(torch.bmm(rows, down.transpose(1, 2)), up).flatten(0, 1)
        if group.kept is not None:
            added = added[group.kept]
        own = output[:, self.begin : self.begin + up.shape[2]]
        own.index_add_(0, group.targets, added)


class AdaptedLinear(nn.Module):
    """A linear layer of any kind, and what the adapters of a step's rows add to it."""

    def __init__(self, base: nn.Module, parts: Sequence[Part], step: AdapterStep) -> None:
        super().__init__()
        self.base = base
        self._parts = tuple(parts)
        self._step = step

    def forward(self, hidden: Tensor) -> Tensor:
        """Multiply [..., inputs] to [..., outputs]; the dimensions before the last are the rows of a step."""
        output: Tensor = self.base(hidden)
        groups = self._step.groups
        if groups:
            inputs, outputs = hidden.flatten(0, -2), output.view(-1, output.shape[-1])
            for group in groups:
                rows = inputs[group.rows]
                for part in self._parts:
                    part.add_to(outputs, rows, group)
        return output
