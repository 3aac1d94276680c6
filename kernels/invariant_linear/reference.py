"""The reference of `invariant_linear` in plain PyTorch."""

import torch
from torch import Tensor
from torch.nn import functional


def invariant_linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Arguments as for `kernels.invariant_linear.invariant_linear`.

    In float32 at least, and row by row: every product has the same shape, and so the same order of terms.
    """
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    wide_weight = weight.to(wide)
    wide_bias = None if bias is None else bias.to(wide)
    rows = [functional.linear(row, wide_weight, wide_bias) for row in torch.split(x.to(wide), 1)]
    return torch.cat(rows).to(x.dtype)
