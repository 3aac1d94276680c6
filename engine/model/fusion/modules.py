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

from engine.model.attention import FusedStep, HeadNorms, Softmax
from engine.model.int8_weights import Int8Linear
from kernels.add_rms_norm import add_rms_norm
from kernels.gated_activation import gated_activation

Product = nn.Linear | Int8Linear
"""Weight, scale and bias have an entry for each output first, so that several can be merged."""
Rotation = tuple[Tensor, Tensor]
"""cos and sin of each token, [T, R]."""


class Norm(nn.Module):
    """An RMS norm; given a residual, of that after `hidden` was added to it, in place."""

    def __init__(self, weight: nn.Parameter, eps: float, *, unit_offset: bool) -> None:
        super().__init__()
        self.weight = weight
        self.eps = eps
        self.unit_offset = unit_offset

    def forward(self, hidden: Tensor, residual: Tensor | None = None) -> Tensor:
        return add_rms_norm(hidden, residual, self.weight, self.eps, unit_offset=self.unit_offset)


class Scale(nn.Module):
    """What a layer's part gives, times a constant, in place."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden.mul_(self.factor)


class Attention(nn.Module):
    """`qkv` gives a token's query heads, then its key heads, then its value heads."""

    def __init__(
        self,
        layer: int,
        qkv: Product,
        output: nn.Module,
        num_heads: tuple[int, int],
        norms: HeadNorms,
        softmax: Softmax,
    ) -> None:
        """`num_heads`: of the queries, and of the keys."""
        super().__init__()
        self.layer = layer
        self.qkv = qkv
        self.output = output
        self.head_split = (num_heads[0], num_heads[1], num_heads[1])
        self.norms = norms
        self.softmax = softmax

    def forward(self, hidden: Tensor, rotation: Rotation, step: FusedStep) -> Tensor:
        num_tokens = hidden.shape[0]
        heads = self.qkv(hidden).view(num_tokens, sum(self.head_split), -1)
        query, key, value = heads.split(self.head_split, dim=1)
        attended = step.rotate_and_attend(self.layer, query, key, value, rotation, self.norms, self.softmax)
        output: Tensor = self.output(attended.reshape(num_tokens, -1))
        return output


class GatedMlp(nn.Module):
    """`gate_up` gives a token's gate, then what it lets through."""

    def __init__(self, gate_up: Product, activation: str, down: nn.Module) -> None:
        super().__init__()
        self.gate_up = gate_up
        self.activation = activation
        self.down = down

    def forward(self, hidden: Tensor) -> Tensor:
        output: Tensor = self.down(gated_activation(self.gate_up(hidden), self.activation))
        return output


class OwnMlp(nn.Module):
    """A family's own, such as a mixture of experts: it takes [1, T, H], and may give scores besides."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, hidden: Tensor) -> Tensor:
        output = self.module(hidden[None])
        rows: Tensor = output[0] if isinstance(output, tuple) else output
        return rows.view(hidden.shape)


class Layer(nn.Module):
    """One decoder layer, up to the norm that the next one begins with (the model's own after the last).

    `after_attention` and `after_mlp` change what is added to the residual: a norm, a factor or nothing.
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

    def forward(self, hidden: Tensor, residual: Tensor, rotation: Rotation, step: FusedStep) -> Tensor:
        """`hidden` [T, H] is the norm of `residual`, to which the layer adds; so is what is returned."""
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


class Decoder(nn.Module):
    """Takes the place of the model in transformers' `...ForCausalLM`, which chooses rows and makes logits."""

    def __init__(
        self,
        embed_tokens: nn.Module,
        embedding_multiplier: float,
        rotations: Rotations,
        first_norm: Norm,
        layers: nn.ModuleList,
        kinds: Sequence[str],
    ) -> None:
        """`kinds`: of each layer, as `rotations` knows them."""
        super().__init__()
        self.embed_tokens = embed_tokens
        self.embedding_multiplier = embedding_multiplier
        self.rotations = rotations
        self.first_norm = first_norm
        self.layers = layers
        self.kinds = tuple(kinds)

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, step: FusedStep, **_ignored: Any
    ) -> MoeModelOutputWithPast:
        """input_ids, position_ids [1, T] -> hidden states [1, T, H], which the last norm made."""
        residual = self.embed(input_ids[0])
        rotations = self.rotations(position_ids[0])
        hidden: Tensor = self.first_norm(residual)
        for layer, kind in zip(self.layers, self.kinds, strict=True):
            hidden = layer(hidden, residual, rotations[kind], step)
        whole: Any = hidden[None]  # a FloatTensor, for the annotation
        # Mixtures of experts ask for `router_logits` besides, which are never wanted here.
        return MoeModelOutputWithPast(last_hidden_state=whole)

    def embed(self, token_ids: Tensor) -> Tensor:
        """[T] -> [T, H], a new tensor: it is what layers add to."""
        embedded: Tensor = self.embed_tokens(token_ids)
        return embedded if self.embedding_multiplier == 1.0 else embedded * self.embedding_multiplier


def merged(products: Sequence[Product]) -> Product:
    """One product that gives what these do, side by side; alone, one stays as it is."""
    first = products[0]
    if len(products) == 1:
        return first
    weight = torch.cat([product.weight for product in products])
    biases = [product.bias for product in products if product.bias is not None]
    bias = torch.cat(biases) if biases else None
    if isinstance(first, Int8Linear):
        return Int8Linear(weight, torch.cat([cast(Int8Linear, product).scale for product in products]), bias)
    # On the "meta" device nothing is allocated that the weights would then replace.
    whole = nn.Linear(first.in_features, len(weight), bias=bias is not None, device="meta")
    whole.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        whole.bias = nn.Parameter(bias, requires_grad=False)
    return whole
