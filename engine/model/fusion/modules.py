"""The fused modules: rows [T, ...] instead of transformers' [1, T, ...], and a residual carried along.

A forward pass reads nothing back from the device, makes no tensor on the host and takes no branch by a value:
it can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import MoeModelOutputWithPast

from engine.model.attention.attention import RotatingStep
from engine.model.quantised.whole_linears import WholeLinear
from kernels.add_rms_norm import add_rms_norm
from kernels.gated_activation import gated_activation
from kernels.paged_attention.arguments import Softmax
from kernels.rope_store_kv import HeadNorms

Product = nn.Linear | WholeLinear
"""A linear layer. Outputs are the first dimension of weight, scale and bias, so layers can be merged."""
Rotation = tuple[Tensor, Tensor]
"""cos and sin of each token, [T, R]."""


class Norm(nn.Module):
    """An RMS norm. Given a residual, it adds `hidden` to it in place, and norms the sum."""

    def __init__(self, weight: nn.Parameter, eps: float, *, unit_offset: bool) -> None:
        super().__init__()
        self.weight = weight
        self.eps = eps
        self.unit_offset = unit_offset

    def forward(self, hidden: Tensor, residual: Tensor | None = None) -> Tensor:
        return add_rms_norm(hidden, residual, self.weight, self.eps, unit_offset=self.unit_offset)


class Scale(nn.Module):
    """Multiplies the output of a layer's part by a constant, in place."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden.mul_(self.factor)


class Attention(nn.Module):
    """Attention whose `qkv` gives a token's query heads, then its key heads, then its value heads."""

    def __init__(
        self,
        layer: int,
        qkv: Product,
        output: nn.Module,
        num_heads: tuple[int, int],
        norms: HeadNorms,
        softmax: Softmax,
    ) -> None:
        """`num_heads` are those of the queries and those of the keys."""
        super().__init__()
        self.layer = layer
        self.qkv = qkv
        self.output = output
        self.head_split = (num_heads[0], num_heads[1], num_heads[1])
        self.norms = norms
        self.softmax = softmax

    def forward(self, hidden: Tensor, rotation: Rotation, step: RotatingStep) -> Tensor:
        num_tokens = hidden.shape[0]
        heads = self.qkv(hidden).view(num_tokens, sum(self.head_split), -1)
        query, key, value = heads.split(self.head_split, dim=1)
        attended = step.rotate_and_attend(self.layer, query, key, value, rotation, self.norms, self.softmax)
        output: Tensor = self.output(attended.reshape(num_tokens, -1))
        return output


class GatedMlp(nn.Module):
    """A gated MLP whose `gate_up` gives a token's gate, then the values that the gate scales."""

    def __init__(self, gate_up: Product, activation: str, down: nn.Module) -> None:
        super().__init__()
        self.gate_up = gate_up
        self.activation = activation
        self.down = down

    def forward(self, hidden: Tensor) -> Tensor:
        output: Tensor = self.down(gated_activation(self.gate_up(hidden), self.activation))
        return output


class OwnMlp(nn.Module):
    """A model's own MLP, such as a mixture of experts; it takes [1, T, H], and may return scores as well."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, hidden: Tensor) -> Tensor:
        output = self.module(hidden[None])
        rows: Tensor = output[0] if isinstance(output, tuple) else output
        return rows.view(hidden.shape)


class Layer(nn.Module):
    """One decoder layer, with the norm that the next layer begins with; the last has the model's own norm.

    `after_attention` and `after_mlp` change what is added to the residual, by a norm, a factor or not at all.
    """

    def __init__(
        self,
        attention: Attention,
        after_attention: nn.Module,
        mlp_norm: Norm,
        mlp: nn.Module,
        after_mlp: nn.Module,
        next_norm: Norm,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.after_attention = after_attention
        self.mlp_norm = mlp_norm
        self.mlp = mlp
        self.after_mlp = after_mlp
        self.next_norm = next_norm

    def forward(self, hidden: Tensor, residual: Tensor, rotation: Rotation, step: RotatingStep) -> Tensor:
        """Add to `residual`, whose norm is `hidden` [T, H]; return the norm of the sum."""
        hidden = self.after_attention(self.attention(hidden, rotation, step))
        hidden = self.mlp_norm(hidden, residual)
        hidden = self.after_mlp(self.mlp(hidden))
        output: Tensor = self.next_norm(hidden, residual)
        return output


class Rotations(nn.Module):
    """cos and sin of every position, [max_context, R], for each kind of layer."""

    def __init__(self, tables: Mapping[str, Rotation]) -> None:
        super().__init__()
        self._kinds = tuple(tables)
        for kind, (cos, sin) in tables.items():
            self.register_buffer(f"cos_{kind}", cos, persistent=False)
            self.register_buffer(f"sin_{kind}", sin, persistent=False)

    def forward(self, positions: Tensor) -> dict[str, Rotation]:
        return {
            kind: (self._rows("cos", kind, positions), self._rows("sin", kind, positions))
            for kind in self._kinds
        }

    def _rows(self, of: str, kind: str, positions: Tensor) -> Tensor:
        return F.embedding(positions, self.get_buffer(f"{of}_{kind}"))


class LayerSequence(nn.Module):
    """Decoder layers, one after the other."""

    def __init__(self, layers: nn.ModuleList, kinds: Sequence[str]) -> None:
        """`kinds` are the names of each layer's kind of rotation."""
        super().__init__()
        self.layers = layers
        self.kinds = tuple(kinds)

    def forward(
        self, hidden: Tensor, residual: Tensor, rotations: Mapping[str, Rotation], step: RotatingStep
    ) -> Tensor:
        """Add to `residual`, whose norm is `hidden` [T, H]; return the norm of the sum."""
        for layer, kind in zip(self.layers, self.kinds, strict=True):
            hidden = layer(hidden, residual, rotations[kind], step)
        return hidden


class Decoder(nn.Module):
    """Replaces the model in transformers' `...ForCausalLM`, which chooses rows and makes logits."""

    def __init__(
        self,
        embed_tokens: nn.Module,
        embedding_multiplier: float,
        rotations: Rotations,
        first_norm: Norm,
        layers: nn.Module,
    ) -> None:
        """`layers` is a LayerSequence, or what replaces it."""
        super().__init__()
        self.embed_tokens = embed_tokens
        self.embedding_multiplier = embedding_multiplier
        self.rotations = rotations
        self.first_norm = first_norm
        self.layers = layers

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, step: RotatingStep, **_ignored: Any
    ) -> MoeModelOutputWithPast:
        """input_ids, position_ids [1, T] -> hidden states [1, T, H], which the last norm made."""
        residual = self.embed(input_ids[0])
        rotations = self.rotations(position_ids[0])
        hidden = self.layers(self.first_norm(residual), residual, rotations, step)
        whole: Any = hidden[None]  # a FloatTensor, for the annotation
        # Mixtures of experts ask for `router_logits` besides, which are never wanted here.
        return MoeModelOutputWithPast(last_hidden_state=whole)

    def embed(self, token_ids: Tensor) -> Tensor:
        """Embed [T] to [T, H], a new tensor, to which the layers add."""
        embedded: Tensor = self.embed_tokens(token_ids)
        return embedded if self.embedding_multiplier == 1.0 else embedded * self.embedding_multiplier


def merged(products: Sequence[Product]) -> Product:
    """Merge products into one that gives their outputs side by side; a single one stays as it is."""
    first = products[0]
    if len(products) == 1:
        return first
    biases = [product.bias for product in products if product.bias is not None]
    bias = torch.cat(biases) if biases else None
    if isinstance(first, WholeLinear):
        return first.with_outputs_of(cast("Sequence[WholeLinear]", products[1:]), bias)
    weight = torch.cat([product.weight for product in products])
    # On the "meta" device no memory is allocated for weights that are replaced at once.
    whole = nn.Linear(first.in_features, len(weight), bias=bias is not None, device="meta")
    whole.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        whole.bias = nn.Parameter(bias, requires_grad=False)
    return whole
