"""Write a step's keys and values into the paged pool.

    kv_layer[slot // block_size, 0, slot % block_size] = key[token]      slot = slot_mapping[token] >= 0
    kv_layer[slot // block_size, 1, slot % block_size] = value[token]

key, value [num_tokens, num_kv_heads, head_dim], kv_layer [num_blocks, 2, block_size, num_kv_heads, head_dim],
all of one dtype; slot_mapping [num_tokens] int64, where a negative slot means that the token is not kept.
An 8-bit kv_layer gets what `kernels.store_kv.quantise` makes of each row, and kv_scales [num_blocks, 2,
num_kv_heads, block_size] float32 the rows' scales.
"""

import torch
from torch import Tensor

from kernels.language import tl, triton
from kernels.launch import (
    FLOAT_DTYPES,
    KV_LIMITS,
    KVLayerShape,
    can_launch,
    check_kv_layer,
    check_tensor,
    next_power_of_2,
    scales_strides,
)
from kernels.store_kv.reference import store_kv_reference

# One program moves one token: 2 × num_kv_heads × head_dim elements (4 KiB for 8 heads of 128 in 16 bits),
# which four warps load and store in 16-byte pieces.
NUM_WARPS = 4
# A float32 of this size has no fraction bits, so that adding it rounds to integers.
ROUNDER = tl.constexpr(1.5 * 2**23)
# Of float32 as bits. e4m3 has steps of 2^(e - 3) from 2^e on, and below 2^-6 those that it has there; what is
# added to the bits of 2^e makes 1.5 · 2^23 of these steps of it.
SIGN_BIT = tl.constexpr(-(2**31))
EXPONENT_BITS = tl.constexpr(0x7F800000)
E4M3_LEAST_POWER = tl.constexpr((127 - 6) << 23)
E4M3_ROUNDER = tl.constexpr((20 << 23) + (1 << 22))


@triton.jit
def quantise_rows(x, dtype: tl.constexpr, LIMIT: tl.constexpr):
    """Quantise a tile [rows, dims], padded with zeros, as `quantise` does.

    Returns float32 numbers that the 8-bit dtype can represent, and scales [rows].
    """
    scales = tl.div_rn(largest(x), LIMIT)
    return in_steps(x, scales, dtype, LIMIT), scales


@triton.jit
def largest(x):
    """Return the largest magnitude of each row, [rows] float32; infinite if the row contains a NaN."""
    x = tl.abs(x.to(tl.float32))
    return tl.max(tl.where(x <= float("inf"), x, float("inf")), axis=1)


@triton.jit
def in_steps(x, scales, dtype: tl.constexpr, LIMIT: tl.constexpr):
    """Divide a tile by its rows' scales, and round to numbers of the 8-bit dtype, as float32."""
    usable = ((scales > 0.0) & (scales < float("inf")))[:, None]
    values = tl.div_rn(x.to(tl.float32), tl.where(usable, scales[:, None], 1.0))
    values = tl.where(usable, values, 0.0)
    return rounded(tl.minimum(tl.maximum(values, -LIMIT), LIMIT), dtype)


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """Round float32 within the 8-bit dtype's limit to its nearest numbers, halves to even.

    A cast is then exact. A cast to e4m3 would round as well, but loses a carry in the interpreter.
    """
    if dtype == tl.int8:
        x = (x + ROUNDER) - ROUNDER
    else:
        bits = x.to(tl.int32, bitcast=True)
        rounder = tl.maximum(bits & EXPONENT_BITS, E4M3_LEAST_POWER) + E4M3_ROUNDER
        rounder = rounder.to(tl.float32, bitcast=True)
        size = (tl.abs(x) + rounder) - rounder
        x = (size.to(tl.int32, bitcast=True) | (bits & SIGN_BIT)).to(tl.float32, bitcast=True)
    return x


@triton.jit
def _store_kv_kernel(
    key_ptr,
    value_ptr,
    kv_ptr,
    slot_ptr,
    stride_key_token,
    stride_key_head,
    stride_value_token,
    stride_value_head,
    stride_kv_block,
    stride_kv_kind,
    stride_kv_slot,
    stride_kv_head,
    scales_ptr,  # None: not quantised
    stride_scales_block,
    stride_scales_kind,
    stride_scales_head,
    LIMIT: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + token)
    if slot < 0:
        return
    heads = tl.arange(0, HEADS_PAD)[:, None]
    dims = tl.arange(0, HEAD_PAD)[None, :]
    real = (heads < NUM_HEADS) & (dims < HEAD_DIM)
    block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    target = kv_ptr + block * stride_kv_block + offset * stride_kv_slot
    target += heads * stride_kv_head + dims
    key = tl.load(key_ptr + token * stride_key_token + heads * stride_key_head + dims, mask=real)
    value = tl.load(value_ptr + token * stride_value_token + heads * stride_value_head + dims, mask=real)
    if scales_ptr is not None:
        key, key_scales = quantise_rows(tl.where(real, key, 0.0), kv_ptr.dtype.element_ty, LIMIT)
        value, value_scales = quantise_rows(tl.where(real, value, 0.0), kv_ptr.dtype.element_ty, LIMIT)
        rows = tl.arange(0, HEADS_PAD)
        target_scales = scales_ptr + block * stride_scales_block + rows * stride_scales_head + offset
        tl.store(target_scales, key_scales, mask=rows < NUM_HEADS)
        tl.store(target_scales + stride_scales_kind, value_scales, mask=rows < NUM_HEADS)
    tl.store(target, key.to(kv_ptr.dtype.element_ty), mask=real)
    tl.store(target + stride_kv_kind, value.to(kv_ptr.dtype.element_ty), mask=real)


def store_kv(
    key: Tensor, value: Tensor, kv_layer: Tensor, slot_mapping: Tensor, kv_scales: Tensor | None = None
) -> None:
    """Write each token's key and value to its slot of `kv_layer`, in place; a negative slot is skipped.

    Slots of one call are distinct. On the CPU a slot beyond the pool raises ValueError. On a GPU that check
    would stall the step; the block manager has to get slots right.
    """
    shape = check_store(key, value, kv_layer, slot_mapping, kv_scales)
    num_tokens = slot_mapping.shape[0]
    if num_tokens == 0:
        return
    if not can_launch(_store_kv_kernel, kv_layer.device):
        store_kv_reference(key, value, kv_layer, slot_mapping, kv_scales)
        return
    _store_kv_kernel[(num_tokens,)](
        key,
        value,
        kv_layer,
        slot_mapping,
        *key.stride()[:2],
        *value.stride()[:2],
        *kv_layer.stride()[:4],
        kv_scales,
        *scales_strides(kv_scales),
        LIMIT=KV_LIMITS.get(kv_layer.dtype),
        BLOCK_SIZE=shape.block_size,
        NUM_HEADS=shape.num_kv_heads,
        HEADS_PAD=next_power_of_2(shape.num_kv_heads),
        HEAD_DIM=shape.head_dim,
        HEAD_PAD=next_power_of_2(shape.head_dim),
        num_warps=NUM_WARPS,
    )


def check_store(
    key: Tensor, value: Tensor, kv_layer: Tensor, slot_mapping: Tensor, kv_scales: Tensor | None = None
) -> KVLayerShape:
    shape = check_kv_layer(kv_layer, kv_scales)
    check_tensor("slot_mapping", slot_mapping, ("num_tokens",), (torch.int64,), kv_layer.device)
    heads = (len(slot_mapping), shape.num_kv_heads, shape.head_dim)
    dtypes = FLOAT_DTYPES if kv_scales is not None else (kv_layer.dtype,)
    check_tensor("key", key, heads, dtypes, kv_layer.device)
    check_tensor("value", value, heads, dtypes, kv_layer.device)
    if not slot_mapping.is_cuda and slot_mapping.numel():
        highest, num_slots = int(slot_mapping.max()), shape.num_blocks * shape.block_size
        if highest >= num_slots:
            raise ValueError(
                f"slot_mapping holds {highest}; accepted: below {num_slots}, or negative to skip"
            )
    return shape
