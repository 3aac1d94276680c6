"""Finds the parts that are fused in transformers' models.

Nothing is inferred from a model's name: a part counts only if it has the expected type, children and sizes.
What names and sizes cannot show, such as the order of operations, is compared by running both
(`engine.model.fusion.probe`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from engine.model.attention.dry_run import LayerFacts
from engine.model.fusion.modules import (
    Attention,
    GatedMlp,
    Layer,
    Norm,
    OwnMlp,
    Rotation,
    Rotations,
    Scale,
    merged,
)
from engine.model.quantised.whole_linears import WholeLinear
from kernels.rope_store_kv import HeadNorms

DECODER = {"embed_tokens", "layers", "norm", "rotary_emb"}
PRE_NORM = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
BOTH_NORMS = PRE_NORM | {"pre_feedforward_layernorm", "post_feedforward_layernorm"}
SEPARATE_QKV, MERGED_QKV = ("q_proj", "k_proj", "v_proj"), ("qkv_proj",)
HEAD_NORMS = {"q_norm", "k_norm"}
SEPARATE_GATE, MERGED_GATE = ("gate_proj", "up_proj"), ("gate_up_proj",)
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_pytorch_tanh"}
"""Maps transformers' names to those of `kernels.gated_activation`."""
EVERY_LAYER = "all"


def misfit(module: Any, layers: LayerFacts) -> str:
    """Return why nothing of this `...ForCausalLM` can be fused; empty if its layers can be."""
    decoder = getattr(module, "model", None)
    if decoder is None or _children(decoder) != DECODER:
        return f"its parts are not {_listed(DECODER)}"
    norms = [decoder.norm]
    for layer in decoder.layers:
        children = _children(layer)
        if children not in (PRE_NORM, BOTH_NORMS):
            return f"a layer's parts are {_listed(children)}"
        norms += [getattr(layer, name) for name in sorted(children) if name.endswith("layernorm")]
        fault = _attention_misfit(layer.self_attn, layers)
        if fault:
            return fault
    hidden_size = decoder.embed_tokens.embedding_dim
    if not all(_is_rms_norm(norm, hidden_size) for norm in norms):
        return "its norms are not RMS norms of a token"
    return ""


def _attention_misfit(attention: Any, layers: LayerFacts) -> str:
    children = _children(attention)
    products = _present(attention, SEPARATE_QKV, MERGED_QKV)
    if children - HEAD_NORMS != {*products, "o_proj"}:
        return f"an attention's parts are {_listed(children)}"
    if not are_mergeable([getattr(attention, name) for name in products]):
        return "its query, key and value products cannot be merged"
    rows = sum(len(getattr(attention, name).weight) for name in products)
    if rows != (layers.num_q_heads + 2 * layers.num_kv_heads) * layers.head_dim:
        return f"its query, key and value products have {rows} rows"
    norms = [getattr(attention, name) for name in sorted(children & HEAD_NORMS)]
    if norms and not (len(norms) == 2 and all(_is_rms_norm(norm, layers.head_dim) for norm in norms)):
        return "its query and key norms are not of one head"
    return ""


def is_gated(mlp: Any, activation: str) -> bool:
    """Return whether an MLP has products for gate, up and down, and an activation that the op supports."""
    names = _present(mlp, SEPARATE_GATE, MERGED_GATE)
    products = [getattr(mlp, name) for name in names]
    return (
        {*names, "down_proj"} <= _children(mlp) <= {*names, "down_proj", "act_fn", "activation_fn"}
        and are_mergeable(products)
        and sum(len(product.weight) for product in products) == 2 * inputs_of(mlp.down_proj)
        and activation in ACTIVATIONS
    )


def activation_of(config: Any) -> str:
    """Return the config's name of the activation; empty if it has none."""
    name: str = getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", None) or ""
    return name


def fused_layer(stock: Any, index: int, layers: LayerFacts, activation: str, next_norm: Norm) -> Layer:
    """Return the fused layer for one that fits; `next_norm` is the norm that the next layer begins with."""
    factor = getattr(stock, "residual_multiplier", 1.0)
    after = nn.Identity() if factor == 1.0 else Scale(factor)
    both = _children(stock) == BOTH_NORMS
    return Layer(
        attention=_fused_attention(stock.self_attn, index, layers),
        after_attention=fused_norm(stock.post_attention_layernorm) if both else after,
        mlp_norm=fused_norm(stock.pre_feedforward_layernorm if both else stock.post_attention_layernorm),
        mlp=_fused_mlp(stock.mlp, activation),
        after_mlp=fused_norm(stock.post_feedforward_layernorm) if both else after,
        next_norm=next_norm,
    )


def fused_norm(stock: Any) -> Norm:
    # Gemma's norms, whose weights count from 1, name it `eps`; all others `variance_epsilon`.
    unit_offset = hasattr(stock, "eps")
    return Norm(stock.weight, stock.eps if unit_offset else stock.variance_epsilon, unit_offset=unit_offset)


class StockRotary:
    """A model's own cos and sin; some models have them by kind of layer."""

    def __init__(self, decoder: Any, config: Any) -> None:
        by_kind = hasattr(decoder.rotary_emb, "layer_types")
        self.kinds: list[str] = config.layer_types if by_kind else [EVERY_LAYER] * len(decoder.layers)
        self._module = decoder.rotary_emb
        self._by_kind = by_kind
        self._like = decoder.norm.weight[:0]

    def __call__(self, positions: torch.Tensor, kind: str) -> Rotation:
        """Return cos and sin as the model's own layers take them, [1, N, R]."""
        cos, sin = self._module(self._like, positions[None], *([kind] if self._by_kind else []))
        return cos, sin

    def tables(self, num_positions: int) -> Rotations:
        positions = torch.arange(num_positions, device=self._like.device)
        return Rotations({kind: _whole(*self(positions, kind)) for kind in sorted(set(self.kinds))})


def _fused_attention(stock: Any, index: int, layers: LayerFacts) -> Attention:
    norms = HeadNorms()
    if _children(stock) >= HEAD_NORMS:
        query, key = fused_norm(stock.q_norm), fused_norm(stock.k_norm)
        norms = HeadNorms(query.weight, key.weight, query.eps, query.unit_offset)
    products = [getattr(stock, name) for name in _present(stock, SEPARATE_QKV, MERGED_QKV)]
    num_heads = (layers.num_q_heads, layers.num_kv_heads)
    return Attention(index, merged(products), stock.o_proj, num_heads, norms, layers.softmaxes[index])


def _fused_mlp(stock: Any, activation: str) -> nn.Module:
    if not is_gated(stock, activation):
        return OwnMlp(stock)
    products = [getattr(stock, name) for name in _present(stock, SEPARATE_GATE, MERGED_GATE)]
    return GatedMlp(merged(products), ACTIVATIONS[activation], stock.down_proj)


def _whole(cos: torch.Tensor, sin: torch.Tensor) -> Rotation:
    """Return cos and sin [N, R] from [1, N, R]; some models give one half of R, which is valid for both."""
    first, second = cos[0].chunk(2, dim=-1)
    if first.shape == second.shape and torch.equal(first, second):
        return cos[0], sin[0]
    return torch.cat((cos[0], cos[0]), dim=-1), torch.cat((sin[0], sin[0]), dim=-1)


def _children(module: nn.Module) -> set[str]:
    """Return the names of a module's children, without dropout, which does nothing in a model that serves."""
    return {name for name, child in module.named_children() if not isinstance(child, nn.Dropout)}


def _present(module: nn.Module, *groups: tuple[str, ...]) -> tuple[str, ...]:
    children = _children(module)
    return next((group for group in groups if children.issuperset(group)), ())


def are_mergeable(products: Sequence[Any]) -> bool:
    """Return whether products have one class and input size, and either all a bias or none."""
    first = products[0]
    if any((product.bias is None) != (first.bias is None) for product in products):
        return False
    if isinstance(first, WholeLinear):
        return all(isinstance(product, WholeLinear) and first.is_like(product) for product in products)
    return all(
        type(product) is nn.Linear and product.in_features == first.in_features for product in products
    )


def inputs_of(product: Any) -> int:
    """Return the number of inputs of a linear layer."""
    inputs: int = product.inputs if isinstance(product, WholeLinear) else product.weight.shape[1]
    return inputs


def _is_rms_norm(norm: Any, size: int) -> bool:
    """Return whether a norm has one weight of this size, and the eps of `fused_norm`."""
    weights = [tuple(weight.shape) for weight in norm.parameters()]
    has_eps = hasattr(norm, "eps") or hasattr(norm, "variance_epsilon")
    return type(norm).__name__.endswith("RMSNorm") and weights == [(size,)] and has_eps


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))
