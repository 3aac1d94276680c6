"""Write a step's keys and values into the paged pool.

    kv_layer[slot // block_size, 0, slot % block_size] = key[token]      slot = slot_mapping[token] >= 0
    kv_layer[slot // block_size, 1, slot % block_size] = value[token]

key, value [num_tokens, num_kv_heads, head_dim], kv_layer [num_blocks, 2, block_size, num_kv_heads, head_dim],
all of one dtype; slot_mapping [num_tokens] int64, where a negative slot means that the token is not kept.
"""

# mypy: disallow-incomplete-defs=False
# (a kernel annotates its constexprs, and its pointers have no Python type)

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.checks import (
    KVLayerShape,
    check_dtype,
    check_kv_layer,
    check_rows,
    check_same_device,
    check_shape,
)
from kernels.launch import can_launch, next_power_of_2
from kernels.store_kv.reference import store_kv_reference

# One program moves one token: 2 × num_kv_heads × head_dim elements (4 KiB for 8 heads of 128 in 16 bits),
# which four warps load and store in 16-byte pieces.
NUM_WARPS = 4


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
    target = kv_ptr + (slot // BLOCK_SIZE) * stride_kv_block + (slot % BLOCK_SIZE) * stride_kv_slot
    target += heads * stride_kv_head + dims
    key = tl.load(key_ptr + token * stride_key_token + heads * stride_key_head + dims, mask=real)
    tl.store(target, key, mask=real)
    value = tl.load(value_ptr + token * stride_value_token + heads * stride_value_head + dims, mask=real)
    tl.store(target + stride_kv_kind, value, mask=real)


def store_kv(key: Tensor, value: Tensor, kv_layer: Tensor, slot_mapping: Tensor) -> None:
    """Write each token's key and value to its slot of `kv_layer`, in place; a negative slot is skipped.

    Slots of one call are distinct. On the CPU a slot past the pool's end is refused; on a GPU that check
    would stall the step, and slots are the block manager's to get right.
    """
    shape = _check(key, value, kv_layer, slot_mapping)
    num_tokens = slot_mapping.shape[0]
    if num_tokens == 0:
        return
    if not can_launch(_store_kv_kernel, kv_layer.device):
        store_kv_reference(key, value, kv_layer, slot_mapping)
        return
    _store_kv_kernel[(num_tokens,)](
        key,
        value,
        kv_layer,
        slot_mapping,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        kv_layer.stride(0),
        kv_layer.stride(1),
        kv_layer.stride(2),
        kv_layer.stride(3),
        BLOCK_SIZE=shape.block_size,
        NUM_HEADS=shape.num_kv_heads,
        HEADS_PAD=next_power_of_2(shape.num_kv_heads),
        HEAD_DIM=shape.head_dim,
        HEAD_PAD=next_power_of_2(shape.head_dim),
        num_warps=NUM_WARPS,
    )


def _check(key: Tensor, value: Tensor, kv_layer: Tensor, slot_mapping: Tensor) -> KVLayerShape:
    shape = check_kv_layer(kv_layer)
    check_shape("slot_mapping", slot_mapping, "num_tokens")
    check_dtype("slot_mapping", slot_mapping, torch.int64)
    check_rows("slot_mapping", slot_mapping)
    for field, tensor in (("key", key), ("value", value)):
        check_shape(field, tensor, slot_mapping.shape[0], shape.num_kv_heads, shape.head_dim)
        check_dtype(field, tensor, kv_layer.dtype)
        check_rows(field, tensor)
    check_same_device(kv_layer.device, [("key", key), ("value", value), ("slot_mapping", slot_mapping)])
    if not slot_mapping.is_cuda and slot_mapping.numel():
        _check_slots(slot_mapping, shape.num_blocks * shape.block_size)
    return shape


def _check_slots(slot_mapping: Tensor, num_slots: int) -> None:
    highest = int(slot_mapping.max())
    if highest >= num_slots:
        raise ValueError(f"slot_mapping holds {highest}; accepted: below {num_slots}, or negative to skip")
