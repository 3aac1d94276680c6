"""A linear layer whose result for a row does not depend on the rows beside it.

    out[t, n] = Σ_k x[t, k] · weight[n, k] + bias[n]        summed in float32, rounded once

x [num_tokens, in_size], weight [out_size, in_size], bias [out_size] or None, out [num_tokens, out_size], of
one dtype.

A matrix library picks tiles, and splits of the sum, by the number of rows, and so changes the order in which
a row's terms are added (He et al., "Defeating Nondeterminism in LLM Inference", 2025). Here one tile and one
order serve any number of rows: the tile follows from dtype and the weight's shape, the sum is never split,
and rows that are missing from a tile are zeros, which touch no other row. Products in float32 are exact, not
of TF32.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.invariant_linear.reference import invariant_linear_reference
from kernels.language import tl, triton
from kernels.launch import FLOAT_DTYPES, can_launch, check_tensor, dot_in_fp32

# Tiles of one column of the weight that run one after another, while the device's cache holds its part of x.
GROUP = 8


@dataclass(frozen=True, slots=True)
class Tile:
    """`tokens` × `outs` results per program, `depth` terms of the sum at a time."""

    tokens: int
    outs: int
    depth: int
    num_warps: int
    num_stages: int


@triton.jit(do_not_specialize=["num_tokens"])
def _invariant_linear_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,  # or None
    out_ptr,
    num_tokens,
    stride_x,
    stride_weight,
    IN_SIZE: tl.constexpr,
    OUT_SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    OUTS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    DOT_IN_FP32: tl.constexpr,
):
    # Programs come in groups of GROUP tiles of tokens by all tiles of outs, tokens first.
    program = tl.program_id(0)
    out_tiles: tl.constexpr = (OUT_SIZE + OUTS - 1) // OUTS
    first_tile = program // (GROUP * out_tiles) * GROUP
    height = tl.minimum(tl.cdiv(num_tokens, TOKENS) - first_tile, GROUP)
    within = program % (GROUP * out_tiles)
    tokens = ((first_tile + within % height) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    outs = ((within // height) * OUTS + tl.arange(0, OUTS)).to(tl.int64)

    terms = tl.arange(0, DEPTH)
    x_rows = x_ptr + tokens[:, None] * stride_x + terms[None, :]
    weight_rows = weight_ptr + outs[None, :] * stride_weight + terms[:, None]
    real_tokens = tokens[:, None] < num_tokens
    real_outs = outs[None, :] < OUT_SIZE
    total = tl.zeros((TOKENS, OUTS), dtype=tl.float32)
    for begin in range(0, IN_SIZE, DEPTH):
        x_real, weight_real = real_tokens, real_outs
        if IN_SIZE % DEPTH:
            x_real = real_tokens & (begin + terms[None, :] < IN_SIZE)
            weight_real = real_outs & (begin + terms[:, None] < IN_SIZE)
        x = tl.load(x_rows + begin, mask=x_real, other=0.0)
        weight = tl.load(weight_rows + begin, mask=weight_real, other=0.0)
        if DOT_IN_FP32:
            x, weight = x.to(tl.float32), weight.to(tl.float32)
        total = tl.dot(x, weight, total, input_precision="ieee")
    if bias_ptr is not None:
        total += tl.load(bias_ptr + outs, mask=outs < OUT_SIZE, other=0.0).to(tl.float32)[None, :]
    tl.store(out_ptr + tokens[:, None] * OUT_SIZE + outs[None, :], total, mask=real_tokens & real_outs)


def invariant_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x · weightᵀ + bias, contiguous; a row's bits are the same alone and among any others.

    Bits differ between devices, and from the reference, which computes float64 and runs where the kernel
    cannot.
    """
    check_tensor("x", x, ("num_tokens", "in_size"), FLOAT_DTYPES)
    check_tensor("weight", weight, ("out_size", x.shape[1]), (x.dtype,), x.device)
    if not weight.numel():
        raise ValueError(f"weight has shape {list(weight.shape)}; accepted: no dimension of 0")
    check_tensor("bias", bias, weight.shape[:1], (x.dtype,), x.device)
    if x.dtype == torch.float64 or not can_launch(_invariant_linear_kernel, x.device):
        return invariant_linear_reference(x, weight, bias)
    num_tokens, in_size = x.shape
    out_size = weight.shape[0]
    out = torch.empty((num_tokens, out_size), dtype=x.dtype, device=x.device)
    if num_tokens == 0:
        return out
    tile = choose_tile(out_size, x.dtype)
    programs = triton.cdiv(num_tokens, tile.tokens) * triton.cdiv(out_size, tile.outs)
    _invariant_linear_kernel[(programs,)](
        x,
        weight,
        bias,
        out,
        num_tokens,
        x.stride(0),
        weight.stride(0),
        IN_SIZE=in_size,
        OUT_SIZE=out_size,
        TOKENS=tile.tokens,
        OUTS=tile.outs,
        DEPTH=tile.depth,
        GROUP=GROUP,
        DOT_IN_FP32=dot_in_fp32(_invariant_linear_kernel, x.dtype),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return out


def choose_tile(out_size: int, dtype: torch.dtype) -> Tile:
    """Choose the tile; 64 tokens are the fewest that Hopper's matrix instruction takes.

    A decode step is bound by reading the weight: a wide one is spread over more programs than an H100 has
    processors with tiles of 128, a narrower one needs 64. Four stages of 128 terms keep 48 or 96 KiB of it on
    their way per program, within the 227 KiB of a processor. float32 has no such instruction.
    """
    if dtype == torch.float32:
        return Tile(tokens=64, outs=64, depth=32, num_warps=8, num_stages=3)
    return Tile(tokens=64, outs=128 if out_size >= 128 * 132 else 64, depth=128, num_warps=4, num_stages=4)
