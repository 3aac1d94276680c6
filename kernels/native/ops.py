"""The single native ops. Arguments are those of the ops of the same name in `kernels`, which check them."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from kernels.native import loader
from kernels.native.panels import Panels
from kernels.paged_attention.arguments import Softmax

DTYPES = (torch.float32, torch.bfloat16)
LEAST_WORK = 16384
"""Numbers below which to wake other threads costs more than they save."""
ACTIVATIONS = {"silu": 0, "gelu_pytorch_tanh": 1, "gelu": 2}
MAX_GROUP = 128
"""The most query heads that may share a KV head in `paged_attention`."""
CONTEXT = 64
"""Positions that a token is taken to read at least, when the work of its attention is estimated."""


def computes(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether the native ops compute on a device in a dtype."""
    return device.type == "cpu" and dtype in DTYPES and loader.library() is not None


def supports(tensor: Tensor) -> bool:
    """Return whether the native ops compute on a tensor."""
    return computes(tensor.device, tensor.dtype)


def call(name: str, dtype: torch.dtype, *arguments: Any, work: int) -> Any:
    """Call a function with arguments for `dtype`, on all of torch's threads if it touches enough numbers."""
    native = loader.library()
    assert native is not None
    threads = torch.get_num_threads() if work >= LEAST_WORK else 1
    function = getattr(native.functions, name)
    return function(loader.parallel(), threads, int(dtype == torch.bfloat16), *arguments)


def fields(**kinds: str) -> list[tuple[str, type]]:
    """Return the fields of a structure by their type, in the order of ops.h."""
    types = {"pointers": c_void_p, "sizes": c_int64, "floats": c_float, "ints": c_int}
    return [(name, types[kind]) for kind, names in kinds.items() for name in names.split()]


class _Norm(ctypes.Structure):
    _fields_ = fields(
        pointers="x residual weight out residual_places out_places",
        sizes="rows stride_x stride_residual size",
        floats="eps",
        ints="unit_offset",
    )


class _Gate(ctypes.Structure):
    _fields_ = fields(pointers="gate_up out", sizes="rows stride size", ints="activation")


class KvStruct(ctypes.Structure):
    """`Kv` of ops.h."""

    _fields_ = fields(
        pointers="numbers scales", sizes="block kind slot head scale_block scale_kind scale_head"
    )


class _Rope(ctypes.Structure):
    _fields_ = [
        *fields(pointers="query key value cos sin"),
        ("kv", KvStruct),
        *fields(
            pointers="slots query_norm key_norm out out_places",
            sizes="tokens query_token query_head key_token key_head value_token value_head cos_token"
            " sin_token block_size num_q_heads num_kv_heads head_dim half",
            floats="eps",
            ints="unit_offset",
        ),
    ]


class _Attention(ctypes.Structure):
    _fields_ = [
        *fields(pointers="query"),
        ("kv", KvStruct),
        *fields(
            pointers="tables context_lens starts sinks out",
            sizes="query_token query_head stride_table num_seqs block_size num_kv_heads group head_dim"
            " window",
            floats="scale softcap",
        ),
    ]


class PanelsStruct(ctypes.Structure):
    """`Panels` of ops.h."""

    _fields_ = fields(pointers="numbers scales zeros offsets", sizes="stored group")


class _Linear(ctypes.Structure):
    _fields_ = [
        *fields(pointers="x"),
        ("panels", PanelsStruct),
        *fields(pointers="bias out", sizes="rows stride_x inputs outputs"),
    ]


def address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def add_rms_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, *, unit_offset: bool
) -> Tensor:
    rows, size = x.shape
    out = torch.empty((rows, size), dtype=x.dtype)
    step = 0 if residual is None else residual.stride(0)
    arguments = _Norm(
        x.data_ptr(), address(residual), weight.data_ptr(), out.data_ptr(), None, None, rows, x.stride(0),
        step, size, eps, unit_offset,
    )  # fmt: skip
    call("baton_add_rms_norm", x.dtype, byref(arguments), work=rows * size)
    return out


def gated_activation(gate_up: Tensor, activation: str) -> Tensor:
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, size), dtype=gate_up.dtype)
    arguments = _Gate(
        gate_up.data_ptr(), out.data_ptr(), rows, gate_up.stride(0), size, ACTIVATIONS[activation]
    )
    call("baton_gated_activation", gate_up.dtype, byref(arguments), work=rows * size)
    return out


def rotates(query: Tensor, cos: Tensor, sin: Tensor, kv_layer: Tensor) -> bool:
    """Return whether `rope_store_kv` computes these: all of one dtype, or KV in int8."""
    return supports(query) and query.dtype == cos.dtype == sin.dtype and _reads(kv_layer, query.dtype)


def rope_store_kv(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor,
    kv_layer: Tensor,
    kv_scales: Tensor | None,
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
        kv_struct(kv_layer, kv_scales), slots.data_ptr(), address(query_norm), address(key_norm),
        out.data_ptr(), None, tokens, *query.stride()[:2], *key.stride()[:2], *value.stride()[:2],
        cos.stride(0), sin.stride(0), kv_layer.shape[2], num_q_heads, key.shape[1], head_dim,
        cos.shape[1] // 2, eps, unit_offset,
    )  # fmt: skip
    call("baton_rope_store_kv", query.dtype, byref(arguments), work=query.numel())
    return out


def attends(query: Tensor, kv_layer: Tensor) -> bool:
    """Return whether `paged_attention` computes these: KV of its dtype or in int8, in small groups."""
    group = query.shape[1] // kv_layer.shape[3]
    return supports(query) and _reads(kv_layer, query.dtype) and group <= MAX_GROUP


def _reads(kv_layer: Tensor, dtype: torch.dtype) -> bool:
    return kv_layer.dtype in (dtype, torch.int8)


def kv_struct(kv_layer: Tensor, scales: Tensor | None) -> KvStruct:
    """Return the addresses and strides of a layer's KV, and of its scales where it is in int8."""
    of_scales = (0, 0, 0) if scales is None else scales.stride()[:3]
    return KvStruct(kv_layer.data_ptr(), address(scales), *kv_layer.stride()[:4], *of_scales)


def paged_attention(
    query: Tensor,
    kv_layer: Tensor,
    kv_scales: Tensor | None,
    block_tables: Tensor,
    context_lens: Tensor,
    cu_seqlens_q: Tensor,
    softmax: Softmax,
) -> Tensor:
    """Attend with chunks of any length, as `kernels.chunked_prefill` does."""
    num_q_heads, head_dim = query.shape[1:]
    _, _, block_size, num_kv_heads, _ = kv_layer.shape
    out = torch.empty(query.shape, dtype=query.dtype)
    sinks = None if softmax.sinks is None else softmax.sinks.float().contiguous()
    lens, starts = context_lens.contiguous(), cu_seqlens_q.contiguous()
    arguments = _Attention(
        query.data_ptr(), kv_struct(kv_layer, kv_scales), block_tables.data_ptr(), lens.data_ptr(),
        starts.data_ptr(), address(sinks), out.data_ptr(), *query.stride()[:2], block_tables.stride(0),
        len(lens), block_size, num_kv_heads, num_q_heads // num_kv_heads, head_dim,
        softmax.sliding_window or 0, softmax.scale, softmax.softcap or 0.0,
    )  # fmt: skip
    call("baton_paged_attention", query.dtype, byref(arguments), work=CONTEXT * query.numel())
    return out


def linear(x: Tensor, panels: Panels, bias: Tensor | None) -> Tensor:
    """Multiply x [n, in], whose rows are contiguous, with a weight in panels (`kernels.native.panels`)."""
    rows = len(x)
    out = torch.empty((rows, panels.outputs), dtype=x.dtype)
    arguments = _Linear(
        x.data_ptr(), struct_of(panels), address(bias), out.data_ptr(), rows, x.stride(0), panels.inputs,
        panels.outputs,
    )  # fmt: skip
    call("baton_linear", x.dtype, byref(arguments), work=panels.numbers.numel())
    return out


def struct_of(panels: Panels) -> PanelsStruct:
    """Return the addresses of panels, which must outlive it."""
    shared = (address(tensor) for tensor in (panels.scales, panels.zeros, panels.offsets))
    return PanelsStruct(panels.numbers.data_ptr(), *shared, panels.stored, panels.group)
