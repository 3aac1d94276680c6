"""The share of LoRA adapters that one process has: of its own layers, and of each its part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from engine.model.attention.dry_run import LayerFacts
from engine.model.parallel.cutting import cut_adapter, cut_size
from engine.model.parallel.part import Part
from engine.model.parallel.stage import LayerCut, Stage


@dataclass(frozen=True, slots=True)
class AdapterShare:
    """`layers` are those of the whole model. Without a part and a stage it is all of an adapter."""

    layers: LayerFacts
    part: Part | None = None
    stage: LayerCut | None = None

    def whole_name(self, layer: str) -> str:
        """Return the name that a linear layer of this process has in the whole model."""
        return layer if self.stage is None else self.stage.whole_name(layer)

    def take(self, layer: str, down: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        """Return this process's part of a layer's A [rank, inputs] and B [outputs, rank]."""
        return (down, up) if self.part is None else cut_adapter(layer, down, up, self.layers, self.part)

    def most_features(self, sizes: Mapping[str, tuple[int, int]]) -> int:
        """Return the inputs and outputs of a process's linear layers, summed; of the stage with the most.

        `sizes` are (inputs, outputs) of the whole model's layers. All processes find the same number.
        """
        own = {name: sum(cut_size(name, size, self.part)) for name, size in sizes.items()}
        if self.stage is None:
            return sum(own.values())
        num_layers, size = len(self.layers.softmaxes), self.stage.stage.size
        shares = [Stage(rank, size).share(num_layers) for rank in range(size)]
        return max(
            sum(count for name, count in own.items() if self.stage.is_in(name, share)) for share in shares
        )
