"""Add to the residual and normalise by the root mean square (Zhang and Sennrich 2019).

    residual[t] += x[t]                                         rounded to the dtype before the norm reads it
    n[t]   = residual[t] · rsqrt(mean(residual[t]²) + eps)      in float32; of x[t] if there is no residual
    out[t] = n[t], rounded to the dtype, · weight               as Llama
    out[t] = n[t] · (1 + weight)                                as Gemma, with unit_offset, rounded once

x, residual, out [num_tokens, size], weight [size], all of one dtype.

Bound by memory: one program reads and writes one row, once. A row's program depends on size and dtype alone,
so a row has the same bits whatever the other rows are.
"""

import torch
from torch import Tensor

from kernels.add_rms_norm.reference import add_rms_norm_reference
from kernels.language import tl, triton
from kernels.launch import FLOAT_DTYPES, can_launch, check_tensor, next_power_of_2
from kernels.native import ops as native

# A thread takes 8 elements, 16 bytes in 16 bits, of a row of up to 4096: a decode step has fewer rows than
# the device has room for programs, so it is the loads in flight per row that count.
ELEMENTS_PER_WARP = 32 * 8
MAX_WARPS = 16


@triton.jit
def weighted(normed, weight, UNIT_OFFSET: tl.constexpr):
    """Return float32 `normed` times the norm's weight, in the weight's dtype."""
    if UNIT_OFFSET:
        product = normed * (1.0 + weight.to(tl.float32))
    else:
        product = normed.to(weight.dtype).to(tl.float32) * weight.to(tl.float32)
    return product.to(weight.dtype)


@triton.jit
def _add_rms_norm_kernel(
    x_ptr,
    residual_ptr,  # or None
    weight_ptr,
    out_ptr,
    stride_x,
    stride_residual,
    eps,
    SIZE: tl.constexpr,
    SIZE_PAD: tl.constexpr,
    UNIT_OFFSET: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, SIZE_PAD)
    real = cols < SIZE
    x = tl.load(x_ptr + token * stride_x + cols, mask=real, other=0.0)
    weight = tl.load(weight_ptr + cols, mask=real, other=0.0)  # loaded here, together with the row
    if residual_ptr is not None:
        target = residual_ptr + token * stride_residual + cols
        residual = tl.load(target, mask=real, other=0.0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(x.dtype)
        tl.store(target, x, mask=real)
    wide = x.to(tl.float32)
    normed = wide * tl.rsqrt(tl.sum(wide * wide, axis=0) / SIZE + eps)
    tl.store(out_ptr + token * SIZE + cols, weighted(normed, weight, UNIT_OFFSET), mask=real)


def add_rms_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, *, unit_offset: bool = False
) -> Tensor:
    """Return the norm of x, or of `residual` after adding x to it in place, as a new contiguous tensor.

    `residual` shares no memory with x. float64 is computed by the reference.
    """
    check_tensor("x", x, ("num_tokens", "size"), FLOAT_DTYPES)
    check_tensor("weight", weight, x.shape[1:], (x.dtype,), x.device)
    check_tensor("residual", residual, x.shape, (x.dtype,), x.device)
    if x.dtype == torch.float64 or not can_launch(_add_rms_norm_kernel, x.device):
        if native.supports(x):
            return native.add_rms_norm(x, residual, weight, eps, unit_offset=unit_offset)
        return add_rms_norm_reference(x, residual, weight, eps, unit_offset=unit_offset)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    num_tokens, size = x.shape
    if out.numel() == 0:
        return out
    size_pad = next_power_of_2(size)
    _add_rms_norm_kernel[(num_tokens,)](
        x,
        residual,
        weight,
        out,
        x.stride(0),
        None if residual is None else residual.stride(0),
        eps,
        SIZE=size,
        SIZE_PAD=size_pad,
        UNIT_OFFSET=unit_offset,
        num_warps=min(max(size_pad // ELEMENTS_PER_WARP, 1), MAX_WARPS),
    )
    return out
