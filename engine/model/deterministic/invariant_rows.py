"""Makes a model on a GPU compute each row independently of the rows beside it.

A matrix library chooses the order of its sums by the number of rows, and so do torch's reductions over a
dimension. Here linear layers are `kernels/invariant_linear`, with one tile and one order of terms for any
number of rows, and RMS norms are `kernels/add_rms_norm`, with a program for each row. torch's own LayerNorm
has a block for each row as well. All other operations of these models on a row are elementwise. Mixtures of
experts are refused: which rows an expert multiplies together depends on the other rows.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from engine.errors import ModelRefused
from kernels.add_rms_norm import add_rms_norm
from kernels.invariant_linear import invariant_linear

_ACCEPTED = "linear layers, norms and embeddings, where rows are deterministic on a GPU"
_PROBE_ROWS = 4
_TOLERANCE = 2**-5
"""Relative difference of a norm's output: several roundings to bfloat16, far less than by a wrong formula."""


class InvariantLinear(nn.Module):
    """Replaces a linear layer; weight [out, in], bias [out] or None."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias

    def forward(self, hidden: Tensor) -> Tensor:
        flat = hidden.reshape(-1, hidden.shape[-1])
        # The width is given: a step may want no logits, and -1 is ambiguous for an empty tensor.
        outputs = self.weight.shape[0]
        return invariant_linear(flat, self.weight, self.bias).view(*hidden.shape[:-1], outputs)


class InvariantNorm(nn.Module):
    """Replaces an RMS norm."""

    def __init__(self, weight: Tensor, eps: float, *, unit_offset: bool) -> None:
        super().__init__()
        self.weight = weight
        self.eps = eps
        self.unit_offset = unit_offset

    def forward(self, hidden: Tensor) -> Tensor:
        flat = hidden.reshape(-1, hidden.shape[-1])
        normed = add_rms_norm(flat, None, self.weight, self.eps, unit_offset=self.unit_offset)
        return normed.view(hidden.shape)


@torch.inference_mode()
def make_rows_invariant(directory: Path, model: nn.Module) -> None:
    """Replace every module that reduces a row. Raises ModelRefused, naming one that cannot be replaced."""
    for name, module in list(model.named_modules()):
        if not list(module.parameters(recurse=False)) or isinstance(module, (nn.Embedding, nn.LayerNorm)):
            continue
        replaced = _invariant(module)
        if replaced is None:
            raise ModelRefused(directory, "module", f"{name} is a {type(module).__name__}", _ACCEPTED)
        model.set_submodule(name, replaced)


def _invariant(module: nn.Module) -> nn.Module | None:
    weight = getattr(module, "weight", None)
    if isinstance(module, nn.Linear):
        return InvariantLinear(module.weight, module.bias)
    if isinstance(module, Conv1D):
        return InvariantLinear(module.weight.t().contiguous(), module.bias)
    if isinstance(weight, Tensor) and weight.ndim == 1 and len(list(module.parameters())) == 1:
        return _invariant_norm(module, weight)
    return None


def _invariant_norm(module: nn.Module, weight: Tensor) -> InvariantNorm | None:
    """Return a norm that gives the same for some rows: a module does not show if its weights count from 1."""
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not isinstance(eps, float):
        return None
    generator = torch.Generator().manual_seed(len(weight))
    rows = torch.randn(_PROBE_ROWS, len(weight), generator=generator).to(weight.device, weight.dtype)
    expected = module(rows).double()
    for unit_offset in (False, True):
        norm = InvariantNorm(weight, eps, unit_offset=unit_offset)
        if (norm(rows).double() - expected).norm() <= _TOLERANCE * expected.norm():
            return norm
    return None
