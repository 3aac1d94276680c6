"""Symmetric 8-bit integers with a scale for each row, the row being one token's key or value of one head.

    scale = max |x| / 127        q = x / scale, rounded to the nearest integer, halves to the even one

A row depends on its own numbers alone and each operation is rounded as IEEE 754 says, so whoever computes a
token's KV again, in any company and on either device, gets the same bytes. A row of zeros has scale 0; what
is no finite number makes its row's scale infinite, so that reading the row gives NaN and is noticed.
"""

import torch
from torch import Tensor

from kernels.checks import KV_LIMITS


def quantise(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Values [..., D] of `dtype` and float32 scales [...] of rows [..., D]."""
    limit = KV_LIMITS[dtype]
    wide = rows.float()
    scales = wide.abs().nan_to_num_(nan=torch.inf, posinf=torch.inf).amax(-1) / limit
    usable = (scales > 0) & scales.isfinite()
    values = torch.where(usable[..., None], wide / scales[..., None], 0.0)
    # A subnormal scale is coarse: what it divides may come out above the limit.
    return values.round_().clamp_(-limit, limit).to(dtype), scales
