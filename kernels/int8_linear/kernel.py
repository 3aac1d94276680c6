"""A linear layer whose weights are int8 with one scale for each output.

    out[t, n] = (Σ_k x[t, k] · weight[n, k]) · scale[n] + bias[n]

x [T, K] and out [T, N] of one float dtype, weight int8 [N, K], scale and bias [N] in x's dtype. Weights are
converted to x's dtype in registers, where every int8 is exact, and the sum is kept in fp32.

The weights' tile is the dot's left operand. On Hopper this operand may be in registers, so converted weights
need not go back through shared memory, and the few rows of a decode fill the narrow side of the instruction
(at least 8) instead of the wide one (64). If the output has fewer tiles than the device runs at once, the sum
over K is split among programs. The last of them to finish adds all parts in their order, so results do not
depend on the order in which programs finish.
"""

import torch
from torch import Tensor

from kernels.int8_linear.reference import int8_linear_reference
from kernels.int8_linear.tiles import MAX_SPLIT_TILES, choose_num_splits, choose_tiles
from kernels.language import tl, triton
from kernels.launch import FLOAT_DTYPES, can_launch, check_contiguous, check_tensor, dot_in_fp32, num_sms

ROW_GROUP = 8  # tiles of rows that run side by side, so that they find their weights in the L2 cache


@triton.jit
def _store_out(out_ptr, acc, scale_ptr, bias_ptr, places, outputs, real, num_outputs):
    """Write acc [outputs, rows], scaled, to out at `places`."""
    scale = tl.load(scale_ptr + outputs, mask=outputs < num_outputs, other=0.0).to(tl.float32)
    result = acc * scale[:, None]
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + outputs, mask=outputs < num_outputs, other=0.0).to(tl.float32)
        result += bias[:, None]
    tl.store(out_ptr + places, result.to(out_ptr.dtype.element_ty), mask=real)


# Of the sizes only a layer's own may change what is compiled, by what they can be divided by: the number of
# rows, and with it that of splits, changes from step to step.
@triton.jit(do_not_specialize=["num_rows", "num_splits", "num_steps"])
def _int8_linear_kernel(
    x_ptr,
    weight_ptr,
    scale_ptr,
    bias_ptr,
    out_ptr,
    partial_ptr,  # [num_splits, num_rows, num_outputs] fp32, or None with one split
    counter_ptr,  # [tiles], zero between launches, or None with one split
    num_rows,
    num_outputs,
    num_inputs,
    stride_x,
    num_splits,
    num_steps,  # of one split
    EVEN_INPUTS: tl.constexpr,  # whether they fill their tiles
    TILE_ROWS: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr,
    TILE_INPUTS: tl.constexpr,
    ROW_GROUP: tl.constexpr,
    DOT_IN_FP32: tl.constexpr,
):
    tile = tl.program_id(0)
    split = tl.program_id(1)
    row_tiles = tl.cdiv(num_rows, TILE_ROWS)
    output_tiles = tl.cdiv(num_outputs, TILE_OUTPUTS)
    group = tile // (ROW_GROUP * output_tiles)
    group_rows = tl.minimum(ROW_GROUP, row_tiles - group * ROW_GROUP)
    place = tile - group * ROW_GROUP * output_tiles
    rows = (group * ROW_GROUP + place % group_rows) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    outputs = (place // group_rows) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    inputs = tl.arange(0, TILE_INPUTS)

    x_rows = x_ptr + rows.to(tl.int64) * stride_x
    weight_rows = weight_ptr + outputs.to(tl.int64) * num_inputs
    begin = split * num_steps * TILE_INPUTS
    end = tl.minimum(begin + num_steps * TILE_INPUTS, num_inputs)
    acc = tl.zeros([TILE_OUTPUTS, TILE_ROWS], tl.float32)
    for k in range(begin, end, TILE_INPUTS):
        x_real = (rows < num_rows)[None, :]
        weight_real = (outputs < num_outputs)[:, None]
        if not EVEN_INPUTS:
            x_real &= (k + inputs < num_inputs)[:, None]
            weight_real &= (k + inputs < num_inputs)[None, :]
        x = tl.load(x_rows[None, :] + (k + inputs)[:, None], mask=x_real, other=0.0)
        weight = tl.load(weight_rows[:, None] + (k + inputs)[None, :], mask=weight_real, other=0)
        if DOT_IN_FP32:
            x = x.to(tl.float32)
        acc = tl.dot(weight.to(x.dtype), x, acc, input_precision="ieee")

    places = rows.to(tl.int64)[None, :] * num_outputs + outputs[:, None]
    real = (outputs < num_outputs)[:, None] & (rows < num_rows)[None, :]
    if partial_ptr is None:
        _store_out(out_ptr, acc, scale_ptr, bias_ptr, places, outputs, real, num_outputs)
    else:
        part = num_rows.to(tl.int64) * num_outputs
        tl.store(partial_ptr + split * part + places, acc, mask=real)
        # All threads of this program have written before one of them counts.
        tl.debug_barrier()
        if tl.atomic_add(counter_ptr + tile, 1, sem="acq_rel") == num_splits - 1:
            total = tl.zeros([TILE_OUTPUTS, TILE_ROWS], tl.float32)
            for other in range(num_splits):
                # From the L2 cache, which all programs share.
                total += tl.load(
                    partial_ptr + other * part + places, mask=real, other=0.0, cache_modifier=".cg"
                )
            _store_out(out_ptr, total, scale_ptr, bias_ptr, places, outputs, real, num_outputs)
            tl.store(counter_ptr + tile, 0)


def make_counters(device: torch.device) -> Tensor:
    """Return `counters` for `int8_linear`, for calls that do not run at the same time."""
    return torch.zeros(MAX_SPLIT_TILES, dtype=torch.int32, device=device)


def int8_linear(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    counters: Tensor | None = None,
) -> Tensor:
    """Multiply x [T, K] float by weight int8 [N, K]; scale and bias [N], and the result [T, N], in x's dtype.

    x may have any row stride; weight is contiguous. `counters` save a fill for each call that splits.
    """
    check_contiguous("weight", weight)
    check_tensor("weight", weight, ("outputs", "inputs"), (torch.int8,), x.device)
    check_tensor("x", x, ("rows", weight.shape[1]), FLOAT_DTYPES)
    check_tensor("scale", scale, weight.shape[:1], (x.dtype,), x.device)
    check_tensor("bias", bias, weight.shape[:1], (x.dtype,), x.device)
    if x.dtype == torch.float64 or not can_launch(_int8_linear_kernel, x.device):
        return int8_linear_reference(x, weight, scale, bias)
    out = torch.empty((x.shape[0], weight.shape[0]), dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    num_rows, num_outputs = out.shape
    num_inputs = weight.shape[1]
    tiles = choose_tiles(num_rows, x.element_size())
    num_tiles = triton.cdiv(num_rows, tiles.rows) * triton.cdiv(num_outputs, tiles.outputs)
    num_steps = triton.cdiv(num_inputs, tiles.inputs)
    num_splits = choose_num_splits(num_tiles, num_steps, tiles.programs_per_sm * num_sms(x.device))
    partial = None
    if num_splits > 1:
        partial = torch.empty((num_splits, num_rows, num_outputs), dtype=torch.float32, device=x.device)
        counters = make_counters(x.device) if counters is None else counters
    _int8_linear_kernel[(num_tiles, num_splits)](
        x,
        weight,
        scale,
        bias,
        out,
        partial,
        counters if num_splits > 1 else None,
        num_rows,
        num_outputs,
        num_inputs,
        x.stride(0),
        num_splits,
        triton.cdiv(num_steps, num_splits),
        EVEN_INPUTS=num_inputs % tiles.inputs == 0,
        TILE_ROWS=tiles.rows,
        TILE_OUTPUTS=tiles.outputs,
        TILE_INPUTS=tiles.inputs,
        ROW_GROUP=ROW_GROUP,
        DOT_IN_FP32=dot_in_fp32(_int8_linear_kernel, x.dtype),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    return out
