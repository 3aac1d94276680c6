"""A mixture's experts in tiles of fixed heights, like the linear layers in `row_tiles`.

Each expert computes the rows that chose it, padded to whole tiles. A token's results are added in the order
of its experts' numbers, so they do not depend on the other tokens of the step.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from engine.model.deterministic.row_tiles import TiledProduct, pad_rows, padded_rows

EXPERTS = "baton_tiled"


class _Experts:
    """The products of one layer."""

    def __init__(self, module: Any) -> None:
        self.gates_up = _products(module, module.gate_up_proj, "gate_up_proj_bias")
        self.downs = _products(module, module.down_proj, "down_proj_bias")


def _products(module: Any, weights: Tensor, bias_name: str) -> list[TiledProduct]:
    biases = getattr(module, bias_name) if module.has_bias else [None] * len(weights)
    return [
        TiledProduct.of_weight(weight.t() if module.is_transposed else weight, bias)
        for weight, bias in zip(weights, biases, strict=True)
    ]


_experts_of: WeakKeyDictionary[nn.Module, _Experts] = WeakKeyDictionary()
"""The products of each layer, made at its first step, which is the model's dry run."""


def tiled_experts(module: Any, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Return [T, H] from rows [T, H], the experts that each row chose [T, k] and their weights [T, k]."""
    experts = _experts_of.get(module)
    if experts is None:
        experts = _experts_of[module] = _Experts(module)
    output = torch.zeros_like(hidden)
    for expert in torch.unique(top_k_index).tolist():
        tokens, places = torch.where(top_k_index == expert)
        rows = pad_rows(hidden[tokens], padded_rows(len(tokens)))
        inner = module._apply_gate(experts.gates_up[expert](rows))  # noqa: SLF001 - transformers' own experts functions call it
        result = experts.downs[expert](inner)[: len(tokens)]
        shares = top_k_weights[tokens, places, None]
        output.index_add_(0, tokens, (result * shares).to(output.dtype))
    return output


ALL_EXPERTS_FUNCTIONS.register(EXPERTS, tiled_experts)
