"""The native ops. Arguments are those of the ops of the same name in `kernels`, which check them."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int, c_int64, c_void_p

import torch
from torch import Tensor

from kernels.native.loader import call, supports
from kernels.paged_attention.arguments import Softmax

ACTIVATIONS = {"silu": 0, "gelu_pytorch_tanh": 1, "gelu": 2}
COLUMNS = 2048
"""Columns of one piece of a row of `gated_activation`."""
MAX_GROUP = 16
"""The most query heads that may share a KV head in `paged_decode`."""
CONTEXT = 64
"""Positions that a decode is taken to read at least, when its work is estimated."""


def _fields(**kinds: str) -> list[tuple[str, type]]:
    """Return the fields of a structure by their type, in the order of ops.c."""
    types = {"pointers": c_void_p, "sizes": c_int64, "floats": c_float, "ints": c_int}
    return [(name, types[kind]) for kind, names in kinds.items() for name in names.split()]


class _Norm(ctypes.Structure):
    _fields_ = _fields(
        pointers="x residual weight out",
        sizes="stride_x stride_residual size",
        floats="eps",
        ints="unit_offset",
    )


class _Gate(ctypes.Structure):
    _fields_ = _fields(pointers="gate_up out", sizes="stride size pieces", ints="activation")


class _Rope(ctypes.Structure):
    _fields_ = _fields(
        pointers="query key value cos sin kv_layer slots query_norm key_norm out",
        sizes="query_token query_head key_token key_head value_token value_head cos_token sin_token kv_block"
        " kv_kind kv_slot kv_head block_size num_q_heads num_kv_heads head_dim half",
        floats="eps",
        ints="unit_offset",
    )


class _Decode(ctypes.Structure):
    _fields_ = _fields(
        pointers="query kv_layer tables context_lens sinks out",
        sizes="query_token query_head kv_block kv_kind kv_slot kv_head stride_table block_size num_kv_heads"
        " group head_dim window",
        floats="scale softcap",
    )


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def add_rms_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, *, unit_offset: bool
) -> Tensor:
    rows, size = x.shape
    out = torch.empty((rows, size), dtype=x.dtype)
    step = 0 if residual is None else residual.stride(0)
    arguments = _Norm(
        x.data_ptr(), _address(residual), weight.data_ptr(), out.data_ptr(), x.stride(0), step, size, eps,
        unit_offset,
    )  # fmt: skip
    call("baton_add_rms_norm", x, rows, arguments, work=rows * size)
    return out


def gated_activation(gate_up: Tensor, activation: str) -> Tensor:
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, size), dtype=gate_up.dtype)
    pieces = -(-size // COLUMNS)
    arguments = _Gate(
        gate_up.data_ptr(), out.data_ptr(), gate_up.stride(0), size, pieces, ACTIVATIONS[activation]
    )
    call("baton_gated_activation", gate_up, rows, arguments, work=rows * size)
    return out


def rotates(query: Tensor, cos: Tensor, sin: Tensor, kv_layer: Tensor) -> bool:
    """Return whether `rope_store_kv` computes these: all of one dtype, and KV that is not quantised."""
    return supports(query) and query.dtype == cos.dtype == sin.dtype == kv_layer.dtype


def rope_store_kv(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor,
    kv_layer: Tensor,
    slot_mapping: Tensor,
    query_norm: Tensor | None,
    key_norm: Tensor | None,
    eps: float,
    *,
    unit_offset: bool,
) -> Tensor:
    tokens, num_q_heads, head_dim = query.shape
    out = torch.empty(query.shape, dtype=query.dtype)
    slots = slot_mapping.contiguous()
    arguments = _Rope(
        query.data_ptr(), key.data_ptr(), value.data_ptr(), cos.data_ptr(), sin.data_ptr(),
        kv_layer.data_ptr(), slots.data_ptr(), _address(query_norm), _address(key_norm), out.data_ptr(),
        *query.stride()[:2], *key.stride()[:2], *value.stride()[:2], cos.stride(0), sin.stride(0),
        *kv_layer.stride()[:4], kv_layer.shape[2], num_q_heads, key.shape[1], head_dim, cos.shape[1] // 2,
        eps, unit_offset,
    )  # fmt: skip
    call("baton_rope_store_kv", query, tokens, arguments, work=query.numel())
    return out


def decodes(query: Tensor, kv_layer: Tensor) -> bool:
    """Return whether `paged_decode` computes these: KV that is not quantised, in groups of few heads."""
    group = query.shape[1] // kv_layer.shape[3]
    return supports(query) and query.dtype == kv_layer.dtype and group <= MAX_GROUP


def paged_decode(
    query: Tensor, kv_layer: Tensor, block_tables: Tensor, context_lens: Tensor, softmax: Softmax
) -> Tensor:
    num_seqs, num_q_heads, head_dim = query.shape
    _, _, block_size, num_kv_heads, _ = kv_layer.shape
    out = torch.empty(query.shape, dtype=query.dtype)
    sinks = None if softmax.sinks is None else softmax.sinks.float().contiguous()
    lens = context_lens.contiguous()
    arguments = _Decode(
        query.data_ptr(), kv_layer.data_ptr(), block_tables.data_ptr(), lens.data_ptr(), _address(sinks),
        out.data_ptr(), *query.stride()[:2], *kv_layer.stride()[:4], block_tables.stride(0), block_size,
        num_kv_heads, num_q_heads // num_kv_heads, head_dim, softmax.sliding_window or 0, softmax.scale,
        softmax.softcap or 0.0,
    )  # fmt: skip
    call("baton_paged_decode", query, num_seqs, arguments, work=CONTEXT * query.numel())
    return out
