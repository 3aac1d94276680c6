"""Rotate a step's queries and keys by their positions, and write keys and values into the paged pool.

    r(x, t)[d]        = x[d] · cos[t, d] - x[d + half] · sin[t, d]        d < half = rotary_dim / 2
    r(x, t)[d + half] = x[d + half] · cos[t, d] + x[d] · sin[t, d]
    r(x, t)[d]        = x[d]                                              d >= rotary_dim
    out[t, h] = r(query[t, h], t)
    kv_layer[slot // block_size, 0, slot % block_size] = r(key[t], t)     slot = slot_mapping[t] >= 0
    kv_layer[slot // block_size, 1, slot % block_size] = value[t]

(Su et al. 2021, with the pairs apart by half as in GPT-NeoX and transformers' rotate_half). With `norms`,
each head's vector is normalised first, as `add_rms_norm` does. The rotation is in float32 and
rounded once; transformers rounds each product and their sum.

query, out [num_tokens, num_q_heads, head_dim], key, value [num_tokens, num_kv_heads, head_dim], kv_layer
[num_blocks, 2, block_size, num_kv_heads, head_dim], all of one dtype; cos, sin [num_tokens, rotary_dim],
whose two halves are equal; slot_mapping [num_tokens] int64. An 8-bit kv_layer, with kv_scales [num_blocks, 2,
num_kv_heads, block_size] float32, gets what `kernels.store_kv.quantise` makes of the rows that another gets.
"""

import torch
from torch import Tensor

from kernels.add_rms_norm.kernel import weighted
from kernels.language import tl, triton
from kernels.launch import FLOAT_DTYPES, KV_LIMITS, can_launch, check_tensor, next_power_of_2, scales_strides
from kernels.native import ops as native
from kernels.rope_store_kv.reference import NO_NORMS, HeadNorms, rope_store_kv_reference
from kernels.store_kv.kernel import check_store, in_steps, largest, quantise_rows

# A program takes up to 8 heads of one token, of the queries or of keys and values: each thread then holds 16
# bytes of 16-bit heads of 128, and even one token is spread over several programs.
HEADS = 8
ELEMENTS_PER_WARP = 32 * 8
MAX_WARPS = 8


@triton.jit
def _rotate_heads(
    source,  # [heads, 1] pointers to each head's vector
    target,  # the same, where it goes
    real,  # [heads, 1]: which heads there are
    kept,  # [heads, 1]: which of them are stored
    cos,  # [1, HALF_PAD] float32
    sin,
    norm_ptr,  # [HEAD_DIM], or None
    eps,
    scales,  # [heads] pointers to each head's scale, or None: not quantised
    LIMIT: tl.constexpr,
    UNIT_OFFSET: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PAD: tl.constexpr,
    REST_PAD: tl.constexpr,
):
    pairs = tl.arange(0, HALF_PAD)[None, :]
    paired = pairs < HALF
    first = tl.load(source + pairs, mask=real & paired, other=0.0)
    second = tl.load(source + HALF + pairs, mask=real & paired, other=0.0)
    dtype: tl.constexpr = first.dtype
    if REST_PAD > 0:
        beyond = 2 * HALF + tl.arange(0, REST_PAD)[None, :]
        rest = tl.load(source + beyond, mask=real & (beyond < HEAD_DIM), other=0.0)
    if norm_ptr is not None:
        wide_first, wide_second = first.to(tl.float32), second.to(tl.float32)
        squares = tl.sum(wide_first * wide_first, axis=1) + tl.sum(wide_second * wide_second, axis=1)
        if REST_PAD > 0:
            wide_rest = rest.to(tl.float32)
            squares += tl.sum(wide_rest * wide_rest, axis=1)
        scale = tl.rsqrt(squares / HEAD_DIM + eps)[:, None]
        weight = tl.load(norm_ptr + pairs, mask=paired, other=0.0)
        first = weighted(wide_first * scale, weight, UNIT_OFFSET)
        weight = tl.load(norm_ptr + HALF + pairs, mask=paired, other=0.0)
        second = weighted(wide_second * scale, weight, UNIT_OFFSET)
        if REST_PAD > 0:
            weight = tl.load(norm_ptr + beyond, mask=beyond < HEAD_DIM, other=0.0)
            rest = weighted(wide_rest * scale, weight, UNIT_OFFSET)
    wide_first, wide_second = first.to(tl.float32), second.to(tl.float32)
    first = (wide_first * cos - wide_second * sin).to(dtype)
    second = (wide_second * cos + wide_first * sin).to(dtype)
    if scales is not None:
        most = tl.maximum(largest(first), largest(second))
        if REST_PAD > 0:
            most = tl.maximum(most, largest(rest))
        own = tl.div_rn(most, LIMIT)
        tl.store(scales[:, None], own[:, None], mask=kept)
        stored: tl.constexpr = target.dtype.element_ty
        first, second = in_steps(first, own, stored, LIMIT), in_steps(second, own, stored, LIMIT)
        if REST_PAD > 0:
            rest = in_steps(rest, own, stored, LIMIT)
    tl.store(target + pairs, first, mask=kept & paired)
    tl.store(target + HALF + pairs, second, mask=kept & paired)
    if REST_PAD > 0:
        tl.store(target + beyond, rest, mask=kept & (beyond < HEAD_DIM))


@triton.jit
def _rope_store_kv_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    cos_ptr,
    sin_ptr,
    kv_ptr,
    slot_ptr,
    query_norm_ptr,  # or None
    key_norm_ptr,  # or None
    out_ptr,
    stride_query_token,
    stride_query_head,
    stride_key_token,
    stride_key_head,
    stride_value_token,
    stride_value_head,
    stride_cos_token,
    stride_sin_token,
    stride_kv_block,
    stride_kv_kind,
    stride_kv_slot,
    stride_kv_head,
    scales_ptr,  # None: not quantised
    stride_scales_block,
    stride_scales_kind,
    stride_scales_head,
    eps,
    LIMIT: tl.constexpr,
    UNIT_OFFSET: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    NUM_Q_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PAD: tl.constexpr,
    REST_PAD: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    pairs = tl.arange(0, HALF_PAD)[None, :]
    cos = tl.load(cos_ptr + token * stride_cos_token + pairs, mask=pairs < HALF, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + token * stride_sin_token + pairs, mask=pairs < HALF, other=0.0).to(tl.float32)
    query_tiles: tl.constexpr = (NUM_Q_HEADS + HEADS - 1) // HEADS
    if tile < query_tiles:
        heads = tile * HEADS + tl.arange(0, HEADS)[:, None]
        real = heads < NUM_Q_HEADS
        source = query_ptr + token * stride_query_token + heads * stride_query_head
        target = out_ptr + (token * NUM_Q_HEADS + heads) * HEAD_DIM
        _rotate_heads(
            source, target, real, real, cos, sin, query_norm_ptr, eps, None, None,
            UNIT_OFFSET, HEAD_DIM, HALF, HALF_PAD, REST_PAD,
        )  # fmt: skip
    else:
        # All is loaded before it is known whether it is kept: a dependent load would cost a round trip.
        slot = tl.load(slot_ptr + token)
        heads = (tile - query_tiles) * HEADS + tl.arange(0, HEADS)[:, None]
        real = heads < NUM_KV_HEADS
        kept = real & (slot >= 0)
        dims = tl.arange(0, HEAD_PAD)[None, :]
        source = value_ptr + token * stride_value_token + heads * stride_value_head
        value = tl.load(source + dims, mask=real & (dims < HEAD_DIM), other=0.0)
        block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
        place = kv_ptr + block * stride_kv_block + offset * stride_kv_slot
        place += heads * stride_kv_head
        scales = None
        if scales_ptr is not None:
            rows = (tile - query_tiles) * HEADS + tl.arange(0, HEADS)
            scales = scales_ptr + block * stride_scales_block + rows * stride_scales_head + offset
            value, value_scales = quantise_rows(value, kv_ptr.dtype.element_ty, LIMIT)
            tl.store((scales + stride_scales_kind)[:, None], value_scales[:, None], mask=kept)
        source = key_ptr + token * stride_key_token + heads * stride_key_head
        _rotate_heads(
            source, place, real, kept, cos, sin, key_norm_ptr, eps, scales, LIMIT,
            UNIT_OFFSET, HEAD_DIM, HALF, HALF_PAD, REST_PAD,
        )  # fmt: skip
        tl.store(place + stride_kv_kind + dims, value, mask=kept & (dims < HEAD_DIM))


def rope_store_kv(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor,
    kv_layer: Tensor,
    slot_mapping: Tensor,
    kv_scales: Tensor | None = None,
    *,
    norms: HeadNorms = NO_NORMS,
) -> Tensor:
    """Return the rotated query, contiguous; store each token's rotated key and its value in its slot.

    A token with a negative slot is rotated and not stored. Slots are distinct, and checked as by `store_kv`.
    float64 is computed by the reference.
    """
    shape = check_store(key, value, kv_layer, slot_mapping, kv_scales)
    num_tokens, head_dim, device = len(slot_mapping), shape.head_dim, kv_layer.device
    check_tensor("query", query, (num_tokens, "num_q_heads", head_dim), (key.dtype,), device)
    check_tensor("cos", cos, (num_tokens, "rotary_dim"), FLOAT_DTYPES, device)
    check_tensor("sin", sin, cos.shape, FLOAT_DTYPES, device)
    rotary_dim = cos.shape[1]
    if rotary_dim % 2 or not 2 <= rotary_dim <= head_dim:
        raise ValueError(f"cos has {rotary_dim} columns; accepted: an even number from 2 to {head_dim}")
    check_tensor("norms.query", norms.query, (head_dim,), (key.dtype,), device)
    check_tensor("norms.key", norms.key, (head_dim,), (key.dtype,), device)
    if query.dtype == torch.float64 or not can_launch(_rope_store_kv_kernel, device):
        if native.rotates(query, cos, sin, kv_layer):
            weights = norms.query, norms.key
            return native.rope_store_kv(
                query, key, value, cos, sin, kv_layer, kv_scales, slot_mapping, *weights, norms.eps,
                unit_offset=norms.unit_offset,
            )  # fmt: skip
        return rope_store_kv_reference(
            query, key, value, cos, sin, kv_layer, slot_mapping, kv_scales, norms=norms
        )
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    if num_tokens == 0:
        return out
    num_q_heads, half = query.shape[1], rotary_dim // 2
    half_pad = next_power_of_2(half)
    heads = min(HEADS, next_power_of_2(max(num_q_heads, shape.num_kv_heads)))
    tiles = triton.cdiv(num_q_heads, heads) + triton.cdiv(shape.num_kv_heads, heads)
    _rope_store_kv_kernel[num_tokens, tiles](
        query,
        key,
        value,
        cos,
        sin,
        kv_layer,
        slot_mapping,
        norms.query,
        norms.key,
        out,
        *query.stride()[:2],
        *key.stride()[:2],
        *value.stride()[:2],
        cos.stride(0),
        sin.stride(0),
        *kv_layer.stride()[:4],
        kv_scales,
        *scales_strides(kv_scales),
        norms.eps,
        LIMIT=KV_LIMITS.get(kv_layer.dtype),
        UNIT_OFFSET=norms.unit_offset,
        BLOCK_SIZE=shape.block_size,
        NUM_Q_HEADS=num_q_heads,
        NUM_KV_HEADS=shape.num_kv_heads,
        HEADS=heads,
        HEAD_DIM=head_dim,
        HEAD_PAD=next_power_of_2(head_dim),
        HALF=half,
        HALF_PAD=half_pad,
        REST_PAD=next_power_of_2(head_dim - rotary_dim) if head_dim > rotary_dim else 0,
        num_warps=min(max(heads * half_pad // ELEMENTS_PER_WARP, 1), MAX_WARPS),
    )
    return out
