"""8-bit numbers with a scale for each row, the row being one token's key or value of one head.

    scale = max |x| / limit        q = x / scale, rounded to the nearest number of the dtype, halves to even

The dtype is int8, with limit 127, or float8_e4m3fn (Micikevicius et al. 2022), with limit 448. With a scale
for each row integers are the more exact: no number is off by more than 1/254 of the row's largest. With fp8
one of the size of the largest is off by up to 1/28 of it, and only those below 1/14 of it by less than 1/254.

A row depends on its own numbers alone and each operation is rounded as IEEE 754 says, so whoever computes a
token's KV again, in any company and on either device, gets the same bytes. A row of zeros has scale 0; what
is no finite number makes its row's scale infinite, so that reading the row gives NaN and is noticed.
"""

import torch
from torch import Tensor

from kernels.launch import KV_LIMITS


def quantise(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Values [..., D] of `dtype` and float32 scales [...] of rows [..., D]."""
    limit = KV_LIMITS[dtype]
    wide = rows.float()
    scales = wide.abs().nan_to_num_(nan=torch.inf, posinf=torch.inf).amax(-1) / limit
    usable = (scales > 0) & scales.isfinite()
    values = torch.where(usable[..., None], wide / scales[..., None], 0.0)
    # A subnormal scale is coarse: what it divides may come out above the limit.
    values.clamp_(-limit, limit)
    if not dtype.is_floating_point:
        values.round_()
    return values.to(dtype), scales
