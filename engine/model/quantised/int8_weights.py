"""Linear layers whose weights are int8, with one scale for each output: weight[n, k] = q[n, k] · scale[n].

Only weights are quantised; activations and sums keep the model's dtype or a wider one (W8A16 of Dettmers et
al., "LLM.int8()", NeurIPS 2022, without its outliers, which are in the activations). Rounding is to nearest
and symmetric, so zero stays zero. A step is the largest weight of a row / 127; each weight is off by at most
half a step.

Embeddings and the layer that makes the logits keep their dtype. They often share one matrix, an embedding is
read by rows and never multiplied, and no later layer averages out an error in a logit. Experts keep theirs
too: transformers has a layer's experts as one tensor that its own functions multiply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from engine.starting import OnProgress, Phase, ignore_progress
from kernels.int8_linear import int8_linear, make_counters

LARGEST = 127
"""-128 is not used, so a weight and its negative are rounded alike."""
PACKED_MAX_ROWS = 8
"""On a CPU torch's int8 product computes row by row: in bfloat16 faster up to this many rows, slower for
16."""
PACKED_INPUTS = 32
"""torch's product reads past the end of rows that are not a multiple of this long."""
CHUNK_ELEMENTS = 1 << 18
"""Weights are expanded this many at a time: 1 MiB in float32, which stays in a core's second-level cache."""


@dataclass(frozen=True, slots=True)
class Quantised:
    """The int8 weights of a model, and the memory that they save."""

    num_layers: int
    """Number of linear layers with int8 weights."""
    num_float_experts: int
    """Number of mixtures of experts, which keep float weights."""
    num_bytes: int
    """Bytes of all weights, int8 or not."""
    float_bytes: int
    """Bytes that they would have without quantisation."""


class Int8Linear(nn.Module):
    """Replaces a linear layer: int8 weight [out, in]; scale and bias [out] in the model's dtype."""

    weight: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", bias)
        # Not shared, since layers may run side by side.
        self._counters = make_counters(weight.device) if weight.is_cuda else None

    def forward(self, hidden: Tensor) -> Tensor:
        """Multiply [..., in] to [..., out]."""
        rows = hidden.reshape(-1, hidden.shape[-1])
        return self.multiply(rows).view(*hidden.shape[:-1], self.weight.shape[0])

    def multiply(self, rows: Tensor) -> Tensor:
        """Multiply [n, in] to [n, out]."""
        if rows.is_cuda:
            return int8_linear(rows, self.weight, self.scale, self.bias, self._counters)
        packed = rows.dtype == torch.bfloat16 and rows.shape[0] <= PACKED_MAX_ROWS
        if packed and rows.shape[1] % PACKED_INPUTS == 0:
            product = torch._weight_int8pack_mm(rows, self.weight, self.scale)  # noqa: SLF001 - torch has no public name for it
        else:
            product = _expanded_product(rows, self.weight).mul_(self.scale)
        return product if self.bias is None else product.add_(self.bias)


def _expanded_product(rows: Tensor, weight: Tensor) -> Tensor:
    """Return rows [n, in] @ weight.T; the int8 weight [out, in] is expanded in parts to the rows' dtype."""
    num_outputs, num_inputs = weight.shape
    step = max(1, CHUNK_ELEMENTS // num_inputs)
    product = rows.new_empty(rows.shape[0], num_outputs)
    expanded = rows.new_empty(min(step, num_outputs), num_inputs)
    for begin in range(0, num_outputs, step):
        chunk = expanded[: min(step, num_outputs - begin)].copy_(weight[begin : begin + step])
        torch.mm(rows, chunk.t(), out=product[:, begin : begin + step])
    return product


@torch.inference_mode()
def quantise_linears(model: Any, device: torch.device, on_progress: OnProgress = ignore_progress) -> None:
    """Replace every linear layer but the one that makes the logits by an Int8Linear on `device`.

    They are replaced one after the other, so at most one layer is in memory twice. Other modules stay where
    they are.
    """
    logits = model.get_output_embeddings()
    linears = [
        name
        for name, module in model.named_modules()
        if isinstance(module, (nn.Linear, Conv1D)) and module is not logits
    ]
    for number, name in enumerate(linears):
        on_progress(Phase.PREPARING, number, len(linears))
        model.set_submodule(name, _quantised(model.get_submodule(name), device))


def quantised_of(model: nn.Module) -> Quantised | None:
    """Describe the int8 weights of a model; None if it has none."""
    linears = [module for module in model.modules() if isinstance(module, Int8Linear)]
    if not linears:
        return None
    # Experts are the weights that have three dimensions: one for the expert.
    experts = {name.rpartition(".")[0] for name, tensor in model.named_parameters() if tensor.ndim == 3}
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    held = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    saved = sum(
        linear.weight.numel() * (linear.scale.element_size() - 1) - linear.scale.nbytes for linear in linears
    )
    return Quantised(len(linears), len(experts), held, held + saved)


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise a weight [out, in]; return int8 [out, in] and scale [out] in the weight's dtype."""
    largest = weight.abs().amax(1).float()
    # A row of zeros has any scale.
    scale = (largest / LARGEST).clamp_min(torch.finfo(weight.dtype).tiny).to(weight.dtype)
    steps = torch.round(weight.float() / scale.float()[:, None]).clamp_(-LARGEST, LARGEST)
    return steps.to(torch.int8), scale


def _quantised(module: nn.Module, device: torch.device) -> Int8Linear:
    matrix, bias = module.get_parameter("weight").to(device), getattr(module, "bias", None)
    quantised, scale = quantise(matrix.t().contiguous() if isinstance(module, Conv1D) else matrix)
    return Int8Linear(quantised, scale, None if bias is None else bias.data.to(device))
