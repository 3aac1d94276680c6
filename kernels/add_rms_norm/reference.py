"""The reference of `add_rms_norm` in plain PyTorch."""

import torch
from torch import Tensor


def add_rms_norm_reference(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, *, unit_offset: bool = False
) -> Tensor:
    """Arguments as for `kernels.add_rms_norm.add_rms_norm`, but that x may have any number of dimensions."""
    if residual is not None:
        x = residual.add_(x)
    wide = x.double() if x.dtype == torch.float64 else x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    if unit_offset:
        return (wide * (1 + weight.to(wide.dtype))).to(x.dtype)
    return weight * wide.to(x.dtype)
