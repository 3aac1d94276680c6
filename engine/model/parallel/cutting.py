"""Cuts the weights of a loaded model to those of one part.

Layers are found by their names, which are the same in all families of the allow-list. transformers has a plan
of its own in most of them (`base_model_tp_plan`), and this one agrees with it wherever that cuts; it has none
for GPT-2, OPT and gpt-oss, and computes the attention of Phi-3 and OLMo 2 whole in every process.

    heads               query, key and value products by outputs, the output product by inputs
    MLPs and experts    gate and up by outputs, down by inputs: each process has a slice of every expert
    embedding, logits   by token ids
    norms over heads    those of OLMo 2, which need the squares of all heads

Everything else is whole in each process. The cut model is a smaller one that works by itself, so that it can
be fused and packed like any other; `engine.model.parallel.joining` makes it a part of the whole.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from engine.model.attention.dry_run import LayerFacts
from engine.model.parallel.part import Part
from engine.model.quantised.whole_linears import SHARED, WholeEmbedding, WholeLinear

BY_OUTPUTS = {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "fc1", "c_fc"}
MERGED_HEADS = {"qkv_proj", "c_attn"}
MERGED_GATE = {"gate_up_proj"}
BY_INPUTS = {"o_proj", "out_proj", "c_proj", "down_proj", "fc2"}
HEAD_NORMS = {"q_norm": "q_proj", "k_norm": "k_proj"}
_DIVIDED = {
    "num_attention_heads": "attention heads",
    "n_head": "attention heads",
    "num_key_value_heads": "KV heads",
    "intermediate_size": "rows of an MLP",
    "moe_intermediate_size": "rows of an expert",
    "ffn_dim": "rows of an MLP",
    "n_inner": "rows of an MLP",
}
_HEAD_COUNTS = ("num_heads", "num_attention_heads", "num_key_value_heads", "split_size")


@dataclass(frozen=True, slots=True)
class Cuts:
    """The places where the parts of a model have to meet, by the names of its modules before fusion."""

    part: Part
    summed: tuple[str, ...]
    """Modules that were cut by inputs: the parts' outputs have to be added."""
    norms: Mapping[str, int]
    """Norms over the heads of all parts, and the number of numbers that each norms."""
    embedding: str
    head: str
    """The layer that makes the logits."""
    vocab_size: int


def check_divides(config: Mapping[str, Any], size: int) -> None:
    """Raise ValueError unless `size` parts of a model with this config.json are equal."""
    given = {field: config[field] for field in _DIVIDED if isinstance(config.get(field), int)}
    common = math.gcd(*given.values()) if given else size
    if common % size:
        accepted = ", ".join(str(number) for number in range(1, common + 1) if common % number == 0)
        counts = " and ".join(f"{count} {_DIVIDED[field]}" for field, count in given.items())
        raise ValueError(f"--tensor-parallel is {size}; accepted: {accepted}, as the model has {counts}")


@torch.no_grad()
def cut(module: Any, layers: LayerFacts, part: Part) -> Cuts:
    """Cut a loaded `...ForCausalLM`, in place; `layers` are those of the whole model."""
    summed, norms = [], {}
    for name, each in list(module.named_modules()):
        leaf = name.rpartition(".")[2]
        if isinstance(each, nn.Linear | Conv1D | WholeLinear):
            if _cut_linear(each, leaf, layers, part):
                summed.append(name)
        elif isinstance(getattr(each, "down_proj", None), nn.Parameter):
            _cut_experts(each, part)
            summed.append(name)
        elif leaf in HEAD_NORMS and each.weight.shape[0] != layers.head_dim:
            norms[name] = each.weight.shape[0]
            _set(each, "weight", part.take(each.weight, 0))
        if hasattr(each, "layer_idx") and hasattr(each, "head_dim"):
            _cut_head_counts(each, part)
    embedding, head = module.get_input_embeddings(), module.get_output_embeddings()
    names = {id(each): name for name, each in module.named_modules()}
    vocab_size = _cut_vocabulary(embedding, head, part)
    return Cuts(part, tuple(summed), norms, names[id(embedding)], names[id(head)], vocab_size)


def _cut_linear(linear: Any, leaf: str, layers: LayerFacts, part: Part) -> bool:
    """Cut a linear layer if its name says so; return whether its outputs have to be added up."""
    outputs, inputs = (1, 0) if isinstance(linear, Conv1D) else (0, 1)
    if leaf in BY_INPUTS:
        for name in linear.by_input if isinstance(linear, WholeLinear) else ("weight",):
            _cut_inputs(linear, name, inputs, part)
        if part.rank and linear.bias is not None:  # it is added once
            _set(linear, "bias", torch.zeros_like(linear.bias))
    elif leaf in BY_OUTPUTS | MERGED_HEADS | MERGED_GATE:
        pieces = _pieces(linear.weight.shape[outputs], leaf, layers)
        _set(linear, "weight", part.take(linear.weight, outputs, pieces))
        for name in ("bias", *SHARED[1:]):
            if getattr(linear, name, None) is not None:
                _set(linear, name, part.take(getattr(linear, name), 0, pieces))
    else:
        return False
    if isinstance(linear, nn.Linear):
        linear.out_features, linear.in_features = linear.weight.shape
    elif isinstance(linear, Conv1D):
        linear.nx, linear.nf = linear.weight.shape
    return leaf in BY_INPUTS


def _cut_inputs(linear: Any, name: str, dimension: int, part: Part) -> None:
    tensor = getattr(linear, name)
    if tensor is None:
        return
    if getattr(linear, "order", None) is not None:
        raise ValueError(f"--tensor-parallel is {part.size}; accepted: 1, by the order of inputs (desc_act)")
    count = tensor.shape[dimension]
    if count % part.size:
        accepted = ", ".join(str(size) for size in range(1, count + 1) if count % size == 0)
        raise ValueError(
            f"--tensor-parallel is {part.size}; accepted: {accepted}, by {count} groups of inputs"
        )
    _set(linear, name, part.take(tensor, dimension))


def cut_adapter(
    layer: str, down: Tensor, up: Tensor, layers: LayerFacts, part: Part
) -> tuple[Tensor, Tensor]:
    """Return the part of an adapter's matrices A [rank, inputs] and B [outputs, rank] of a linear layer.

    They are cut where the layer is: B by outputs, or A by inputs, since the sum of all parts' B (A x) is then
    that of the whole. `layers` are those of the whole model.
    """
    leaf = layer.rpartition(".")[2]
    if leaf in BY_INPUTS:
        return part.take(down, 1), up
    if leaf in BY_OUTPUTS | MERGED_HEADS | MERGED_GATE:
        return down, part.take(up, 0, _pieces(up.shape[0], leaf, layers))
    return down, up


def cut_size(layer: str, size: tuple[int, int], part: Part | None) -> tuple[int, int]:
    """Return (inputs, outputs) of a part of a linear layer; `size` are those of the whole."""
    inputs, outputs = size
    leaf = layer.rpartition(".")[2]
    if part is not None and leaf in BY_INPUTS:
        return inputs // part.size, outputs
    if part is not None and leaf in BY_OUTPUTS | MERGED_HEADS | MERGED_GATE:
        return inputs, outputs // part.size
    return size


def _pieces(num_outputs: int, leaf: str, layers: LayerFacts) -> list[int] | None:
    """Return the numbers of outputs that are cut each by itself; None for all of them together."""
    if leaf in MERGED_GATE:
        return [num_outputs // 2] * 2
    if leaf in MERGED_HEADS:
        return [heads * layers.head_dim for heads in (layers.num_q_heads, *[layers.num_kv_heads] * 2)]
    return None


def _cut_experts(experts: Any, part: Part) -> None:
    """Cut each expert of a mixture, whose weights [E, ...] are one tensor."""
    inner, outer = (1, 2) if getattr(experts, "is_transposed", False) else (2, 1)
    width = experts.gate_up_proj.shape[outer]
    # Where gates and values alternate, a share of all is a share of both.
    pieces = [width // 2] * 2 if getattr(experts, "is_concatenated", True) else None
    _set(experts, "gate_up_proj", part.take(experts.gate_up_proj, outer, pieces))
    _set(experts, "down_proj", part.take(experts.down_proj, inner))
    if getattr(experts, "gate_up_proj_bias", None) is not None:
        _set(experts, "gate_up_proj_bias", part.take(experts.gate_up_proj_bias, 1, pieces))
        if part.rank:
            _set(experts, "down_proj_bias", torch.zeros_like(experts.down_proj_bias))


def _cut_head_counts(attention: Any, part: Part) -> None:
    """Let an attention module count its own heads, and its sinks be those of these."""
    config = copy.copy(attention.config)
    for holder in (attention, config):
        for name in _HEAD_COUNTS:
            if isinstance(getattr(holder, name, None), int):
                setattr(holder, name, getattr(holder, name) // part.size)
    attention.config = config
    if isinstance(getattr(attention, "sinks", None), nn.Parameter):
        _set(attention, "sinks", part.take(attention.sinks, 0))


def _cut_vocabulary(embedding: Any, head: Any, part: Part) -> int:
    """Cut the embedding and the layer of the logits, which may share a weight; return the size of both."""
    vocab_size: int = embedding.weight.shape[0]
    words, is_tied = part.words(vocab_size), head.weight is embedding.weight
    if isinstance(embedding, WholeEmbedding):
        for name, tensor in embedding.tensors.items():
            _set(embedding, name, tensor[words].clone())
    else:
        _set(embedding, "weight", embedding.weight[words].clone())
        embedding.num_embeddings, embedding.padding_idx = len(embedding.weight), None
    for name in SHARED if isinstance(head, WholeLinear) else ("weight",):
        if is_tied:
            setattr(head, name, getattr(embedding, name, None))
        elif getattr(head, name) is not None:
            _set(head, name, getattr(head, name)[words].clone())
    if head.bias is not None:
        _set(head, "bias", head.bias[words].clone())
    if isinstance(head, nn.Linear):
        head.out_features = len(head.weight)
    return vocab_size


def _set(module: Any, name: str, tensor: Tensor) -> None:
    is_parameter = isinstance(getattr(module, name), nn.Parameter)
    setattr(module, name, nn.Parameter(tensor, requires_grad=False) if is_parameter else tensor)
