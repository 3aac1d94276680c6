"""A stage of a pipeline: consecutive layers of a model, which one process computes for all steps.

The first stage has the embedding, the last one the norm and the layer that make the logits. Cut to the layers
of a stage, a model is a smaller one that works by itself, so it can be fused and packed like any other.
`join_stage` then lets it take up what the stage before has computed, [T, hidden_size], which is what all
layers add to, and leave the same for the next one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from engine.model.attention.attention import RotatingStep
from engine.model.fusion import NativeSequence
from engine.model.fusion.modules import Decoder, Rotation
from engine.model.quantised.whole_linears import WholeEmbedding

_NUM_LAYERS = ("num_hidden_layers", "n_layer")


@dataclass(frozen=True, slots=True)
class Stage:
    """Stage `rank` of `size`."""

    rank: int
    size: int

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        return self.rank == self.size - 1

    def share(self, num_layers: int) -> slice:
        """Return this stage's layers. Where stages cannot be equal, earlier ones have one more.

        The last one makes the logits besides, and the first one plans and draws.
        """
        count, rest = divmod(num_layers, self.size)
        begin = self.rank * count + min(self.rank, rest)
        return slice(begin, begin + count + (self.rank < rest))


@dataclass(frozen=True, slots=True)
class LayerCut:
    """Which layers of a model were kept, and where its other parts are, by their names before fusion."""

    stage: Stage
    layers: slice
    container: str
    """The list of layers."""
    embedding: str
    head: str
    """The layer that makes the logits."""
    width: int
    """The numbers in a row of the embedding."""
    vocab_size: int
    dtype: torch.dtype

    @property
    def is_last(self) -> bool:
        return self.stage.is_last

    def whole_name(self, name: str) -> str:
        """Return the name that a module of this stage has in the whole model."""
        index, rest = self._place(name)
        return name if index is None else f"{self.container}.{self.layers.start + index}{rest}"

    def is_in(self, name: str, layers: slice) -> bool:
        """Return whether a stage with these layers has the module of this name in the whole model.

        What is in no layer is in all stages.
        """
        index, _ = self._place(name)
        return index is None or layers.start <= index < layers.stop

    def _place(self, name: str) -> tuple[int | None, str]:
        """Return the index of the layer that a module is in, None for none, and the rest of its name."""
        match = re.fullmatch(rf"{re.escape(self.container)}\.(\d+)(.*)", name)
        return (None, name) if match is None else (int(match[1]), match[2])


class Relay(Protocol):
    """Passes a step's activations from one stage to the next."""

    def take(self) -> Tensor:
        """Return what the stage before has left, [T, hidden_size]; it may be overwritten."""

    def leave(self, hidden: Tensor) -> None:
        """Leave the activations [T, hidden_size] for the next stage."""


def check_layers(config: Mapping[str, Any], size: int) -> None:
    """Raise ValueError unless a model with this config.json has a layer for each of `size` stages."""
    for field in _NUM_LAYERS:
        num_layers = config.get(field)
        if isinstance(num_layers, int) and num_layers < size:
            raise ValueError(
                f"--pipeline-parallel is {size}; accepted: 1 to {num_layers}, as the model has {num_layers} "
                "layers"
            )


@torch.no_grad()
def cut_layers(module: Any, stage: Stage) -> LayerCut:
    """Keep the layers of one stage of a loaded `...ForCausalLM`, in place."""
    config = module.config
    num_layers = config.num_hidden_layers
    container, layers = next(
        (name, each)
        for name, each in module.named_modules()
        if isinstance(each, nn.ModuleList) and len(each) == num_layers
    )
    names = {id(each): name for name, each in module.named_modules()}
    embedding, head = module.get_input_embeddings(), module.get_output_embeddings()
    share = stage.share(num_layers)
    kept = layers[share]
    for each in kept.modules():
        if isinstance(getattr(each, "layer_idx", None), int):
            each.layer_idx -= share.start
    module.set_submodule(container, kept)
    config.num_hidden_layers = len(kept)
    if isinstance(getattr(config, "layer_types", None), list | tuple):
        vars(config)["layer_types"] = list(config.layer_types[share])
    vocab_size, width = len(embedding.weight), embedding.embedding_dim
    places = container, names[id(embedding)], names[id(head)]
    return LayerCut(stage, share, *places, width, vocab_size, dtype_of(embedding))


def dtype_of(embedding: Any) -> torch.dtype:
    """Return the dtype of what an embedding looks up."""
    dtype: torch.dtype = embedding.dtype if isinstance(embedding, WholeEmbedding) else embedding.weight.dtype
    return dtype


class NoEmbedding(nn.Module):
    """Stands in for an embedding whose rows nobody needs."""

    def __init__(self, hidden_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self._row = torch.zeros(hidden_size, dtype=dtype)

    def forward(self, token_ids: Tensor) -> Tensor:
        """Return zeros [..., hidden_size]."""
        return self._row.expand(*token_ids.shape, -1)


class NoHead(nn.Module):
    """Stands in for the layer that makes the logits, where no rows are asked for."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self._vocab_size = vocab_size

    def forward(self, hidden: Tensor) -> Tensor:
        """Return no logits [1, 0, vocab_size] for [1, 0, hidden_size]."""
        return hidden.new_empty(*hidden.shape[:-1], self._vocab_size)


class Taken(nn.Module):
    """Replaces a fused decoder's embedding: the rows are those that the stage before has left."""

    def __init__(self, relay: Relay) -> None:
        super().__init__()
        self._relay = relay

    def forward(self, _token_ids: Tensor) -> Tensor:
        return self._relay.take()


class Left(nn.Module):
    """The layers of a fused decoder, whose sum is left for the next stage."""

    def __init__(self, layers: nn.Module, relay: Relay) -> None:
        super().__init__()
        self.layers = layers
        self._relay = relay

    def forward(
        self, hidden: Tensor, residual: Tensor, rotations: Mapping[str, Rotation], step: RotatingStep
    ) -> Tensor:
        output: Tensor = self.layers(hidden, residual, rotations, step)
        self._relay.leave(residual)
        return output


def join_stage(module: Any, cut: LayerCut, relay: Relay) -> None:
    """Make a model that was cut, and may have been fused since, a stage of the whole, in place."""
    decoder = getattr(module, "model", None)
    if isinstance(decoder, Decoder):
        if not cut.stage.is_first:
            decoder.embed_tokens, decoder.embedding_multiplier = Taken(relay), 1.0
        if not cut.is_last:
            if isinstance(decoder.layers, NativeSequence):
                decoder.layers.compute_all()
            decoder.layers = Left(decoder.layers, relay)
    else:
        layers: Any = module.get_submodule(cut.container)
        if not cut.stage.is_first:
            module.set_submodule(cut.embedding, NoEmbedding(cut.width, cut.dtype))
            layers[0].register_forward_pre_hook(lambda _, given: (relay.take()[None], *given[1:]))
        if not cut.is_last:
            layers[-1].register_forward_hook(lambda _module, _given, output: relay.leave(_hidden(output)))
    if not cut.is_last:
        module.set_submodule(cut.head, NoHead(cut.vocab_size))


def _hidden(output: Any) -> Tensor:
    """Return the activations [T, hidden_size] in what a layer of transformers returns."""
    hidden: Tensor = output if isinstance(output, Tensor) else output[0]
    return hidden[0]
