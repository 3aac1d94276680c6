"""Rounds the weights of linear layers to whole numbers, when a model is loaded.

8 bits have one scale for each output, and are symmetric: weight[n, k] = q[n, k] * scale[n] (W8A16 of Dettmers
et al., "LLM.int8()", NeurIPS 2022, without its outliers, which are in the activations). A step is the largest
weight of a row / 127, and zero stays zero.

4 bits have a scale and a zero for each group of GROUP inputs, whose range they divide into 15 steps. A layer
whose inputs are no multiple of GROUP gets 8 bits.

Rounding is to the nearest: each weight is off by at most half a step.

Embeddings and the layer that makes the logits keep their dtype unless 8 bits are asked for: no later layer
averages out an error in a logit. They often share one matrix. Experts keep theirs too: transformers has a
layer's experts as one tensor that its own functions multiply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from engine.model.quantised.whole_linears import (
    GroupedLinear,
    Int8Embedding,
    Int8Linear,
    WholeEmbedding,
    WholeLinear,
)
from engine.starting import OnProgress, Phase, ignore_progress
from kernels.native.panels import packed

LARGEST = 127
"""-128 is not used, so a weight and its negative are rounded alike."""
GROUP = 64
"""Inputs that share a scale of 4 bits."""
STEPS = 15
"""Steps of 4 bits from the least weight of a group to the greatest."""


@dataclass(frozen=True, slots=True)
class Quantised:
    """The whole-numbered weights of a model, and the memory that they save."""

    num_layers: int
    """Number of linear layers with such weights."""
    num_float_experts: int
    """Number of mixtures of experts, which keep float weights."""
    num_bytes: int
    """Bytes of all weights, whole numbers or not."""
    float_bytes: int
    """Bytes that they would have without quantisation."""


@torch.inference_mode()
def quantise_linears(
    model: Any,
    bits: int,
    device: torch.device,
    *,
    on_progress: OnProgress = ignore_progress,
) -> None:
    """Replace every linear layer but the one that makes the logits by one of `bits`, on `device`.

    They are replaced one after the other, so at most one layer is in memory twice. Other modules stay where
    they are.
    """
    head = model.get_output_embeddings()
    linears = [
        name
        for name, module in model.named_modules()
        if isinstance(module, (nn.Linear, Conv1D)) and module is not head
    ]
    for number, name in enumerate(linears):
        on_progress(Phase.PREPARING, number, len(linears))
        model.set_submodule(name, _quantised(model.get_submodule(name), bits, device))


@torch.inference_mode()
def quantise_ends(model: Any, device: torch.device) -> None:
    """Give 8 bits to the layer that makes the logits, and to an embedding that only looks rows up."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if isinstance(head, WholeLinear):  # a checkpoint has it in whole numbers already
        return
    whole = _quantised(head, 8, device)
    model.set_output_embeddings(whole)
    if type(embedding) is nn.Embedding:  # others multiply what they look up
        is_shared = embedding.weight is head.weight
        weight, scale = (whole.weight, whole.scale) if is_shared else quantise(embedding.weight.to(device))
        model.set_input_embeddings(Int8Embedding(weight, scale))


def quantised_of(model: nn.Module) -> Quantised | None:
    """Describe the whole-numbered weights of a model; None if it has none."""
    linears = [module for module in model.modules() if isinstance(module, WholeLinear)]
    if not linears:
        return None
    # Experts are the weights that have three dimensions: one for the expert.
    experts = {name.rpartition(".")[0] for name, tensor in model.named_parameters() if tensor.ndim == 3}
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    held = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    saved = sum(
        linear.inputs * linear.outputs * linear.dtype.itemsize - linear.num_bytes for linear in linears
    )
    shared = {id(linear.weight) for linear in linears}
    for module in model.modules():
        if isinstance(module, WholeEmbedding) and id(module.weight) not in shared:
            float_bytes = len(module.weight) * module.embedding_dim * module.dtype.itemsize
            saved += float_bytes - sum(tensor.nbytes for tensor in module.tensors.values())
    return Quantised(len(linears), len(experts), held, held + saved)


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise a weight [out, in]; return int8 [out, in] and scale [out] in the weight's dtype."""
    largest = weight.abs().amax(1).float()
    # A row of zeros has any scale.
    scale = (largest / LARGEST).clamp_min(torch.finfo(weight.dtype).tiny).to(weight.dtype)
    steps = torch.round(weight.float() / scale.float()[:, None]).clamp_(-LARGEST, LARGEST)
    return steps.to(torch.int8), scale


def quantise_groups(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantise a weight [out, in] to 4 bits.

    Return numbers uint8 [out, in / 2], scale float32 and zero int8 [out, in / GROUP], for GroupedLinear.
    """
    groups = weight.float().view(len(weight), -1, GROUP)
    # Zero is one of the steps, so that it stays zero.
    least, greatest = groups.amin(2).clamp_max(0), groups.amax(2).clamp_min(0)
    scale = ((greatest - least) / STEPS).clamp_min(torch.finfo(torch.float32).tiny)
    zero = torch.round(-least / scale)
    steps = torch.round(groups / scale[..., None]).add_(zero[..., None]).clamp_(0, STEPS)
    return packed(steps.to(torch.uint8).flatten(1)), scale, zero.to(torch.int8)


def _quantised(module: nn.Module, bits: int, device: torch.device) -> WholeLinear:
    matrix, bias = module.get_parameter("weight").to(device), getattr(module, "bias", None)
    weight = matrix.t().contiguous() if isinstance(module, Conv1D) else matrix
    bias = None if bias is None else bias.data.to(device)
    if bits == 4 and weight.shape[1] % GROUP == 0:
        return GroupedLinear(*quantise_groups(weight), bias, bits=4, dtype=weight.dtype)
    return Int8Linear(*quantise(weight), bias)
