"""Decoder layers in one call. The structures are those of layers.c."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_double, c_void_p
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.native.adapters import AdapterBlocks, AdapterParts
from kernels.native.group import Group
from kernels.native.ops import (
    ACTIVATIONS,
    KvStruct,
    PanelsStruct,
    address,
    call,
    fields,
    kv_struct,
    struct_of,
)
from kernels.native.panels import Panels
from kernels.paged_attention.arguments import Softmax


class Seconds(ctypes.Structure):
    """The time that layers have spent on linear products, on attention and on other ops; C adds to it."""

    products: float
    attention: float
    other: float
    _fields_ = [(name, c_double) for name in ("products", "attention", "other")]


class _Weight(ctypes.Structure):
    _fields_ = [
        ("panels", PanelsStruct),
        *fields(pointers="bias adapters", sizes="inputs outputs num_parts"),
    ]


class _Norm(ctypes.Structure):
    _fields_ = fields(pointers="weight", floats="eps", ints="unit_offset")


class _Layer(ctypes.Structure):
    _fields_ = [
        *((name, _Weight) for name in ("qkv", "output", "gate_up", "down")),
        *(
            (name, _Norm)
            for name in (
                "query_norm", "key_norm", "after_attention", "mlp_norm", "after_mlp", "next_norm",
            )
        ),
        *fields(
            pointers="sinks",
            sizes="rotation window",
            floats="scale softcap attention_factor mlp_factor",
            ints="activation",
        ),
    ]  # fmt: skip


class _Step(ctypes.Structure):
    _fields_ = [
        *fields(pointers="hidden residual qkv query attended added gate_up activated"),
        ("kv", KvStruct),
        *fields(
            pointers="cos sin slots tables context_lens starts seconds adapters group wanted",
            sizes="num_wanted tokens num_seqs stride_table kv_layer_stride scale_layer_stride hidden_size"
            " block_size num_q_heads num_kv_heads head_dim rotary_dim",
        ),
    ]


@dataclass(frozen=True, slots=True)
class LinearWeight:
    """A weight and its bias [outputs]."""

    panels: Panels
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class NormWeight:
    weight: Tensor
    eps: float
    unit_offset: bool


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. Heads are ordered as in `qkv`: all queries, then all keys, then all values.

    What is optional is left out if None, or if a factor is 1. `rotation` counts the kinds of rotation.
    """

    qkv: LinearWeight
    output: LinearWeight
    gate_up: LinearWeight
    down: LinearWeight
    query_norm: NormWeight | None
    key_norm: NormWeight | None
    after_attention: NormWeight | None
    attention_factor: float
    mlp_norm: NormWeight
    after_mlp: NormWeight | None
    mlp_factor: float
    next_norm: NormWeight
    softmax: Softmax
    rotation: int
    activation: str


@dataclass(frozen=True, slots=True)
class Paged:
    """Where a step's tokens belong. Sequence s has the tokens starts[s] to starts[s + 1].

    kv            [num_blocks, num_layers, 2, block_size, num_kv_heads, head_dim], of all layers
    scales        [num_blocks, num_layers, 2, num_kv_heads, block_size] of KV in int8, else None
    slots         [T] int64, block * block_size + offset; -1 is not stored
    tables        [S, max_blocks] int32
    context_lens  [S] int32
    starts        [S + 1] int32
    wanted        [R] int64, the tokens whose output is wanted of the last layer, ascending
    """

    kv: Tensor
    scales: Tensor | None
    slots: Tensor
    tables: Tensor
    context_lens: Tensor
    starts: Tensor
    wanted: Tensor


class NativeLayers:
    """All decoder layers of a model, and the buffers of their steps; one step at a time."""

    def __init__(self, layers: Sequence[LayerWeights], hidden_size: int, num_q_heads: int) -> None:
        self._weights = layers  # the addresses below are theirs
        self._sinks = [
            None if layer.softmax.sinks is None else layer.softmax.sinks.float() for layer in layers
        ]
        self._layers = (_Layer * len(layers))(*map(_layer, layers, self._sinks))
        self._hidden_size = hidden_size
        self._num_q_heads = num_q_heads
        first = layers[0]
        self._dtype = first.next_norm.weight.dtype
        self._widths = (
            first.qkv.panels.outputs,
            first.output.panels.inputs,
            first.output.panels.inputs,
            hidden_size,
            max(layer.gate_up.panels.outputs for layer in layers),
            max(layer.down.panels.inputs for layer in layers),
        )
        self._weights_in_all = sum(
            weight.panels.inputs * weight.panels.outputs
            for layer in layers
            for weight in (layer.qkv, layer.output, layer.gate_up, layer.down)
        )
        self._adapters: list[AdapterParts] = []
        self._seconds: int | None = None
        self._group: Group | None = None
        self._computes_all = False
        self._buffers: tuple[Tensor, ...] = ()
        self._rows = 0

    def run(
        self,
        hidden: Tensor,
        residual: Tensor,
        rotations: Sequence[tuple[Tensor, Tensor]],
        paged: Paged,
        adapters: AdapterBlocks | None = None,
    ) -> None:
        """Add all layers to `residual` [T, H]; `hidden` [T, H] is its norm before and after.

        Both are contiguous. `rotations` are cos and sin [T, R] of each kind. `adapters` are the rows that
        have one of those that were set.

        Of the last layer, only the keys and values of all tokens are computed, unless `compute_all` was
        called or there are `adapters`. Rows that are not `paged.wanted` are then left undefined.
        """
        tokens = len(hidden)
        wanted = None if self._computes_all or adapters is not None else paged.wanted
        cos, sin = (
            (c_void_p * len(rotations))(*(table.data_ptr() for table in tables))
            for tables in zip(*rotations, strict=True)
        )
        kv, scales = paged.kv, paged.scales
        step = _Step(
            hidden.data_ptr(), residual.data_ptr(), *self._reserve(tokens),
            kv_struct(kv[:, 0], None if scales is None else scales[:, 0]), ctypes.addressof(cos),
            ctypes.addressof(sin), paged.slots.data_ptr(), paged.tables.data_ptr(),
            paged.context_lens.data_ptr(), paged.starts.data_ptr(), self._seconds,
            None if adapters is None else ctypes.addressof(adapters.struct), self._group_address(tokens),
            address(wanted), -1 if wanted is None else len(wanted), tokens, len(paged.context_lens),
            paged.tables.stride(0), kv.stride(1), 0 if scales is None else scales.stride(1),
            self._hidden_size, kv.shape[3], self._num_q_heads, kv.shape[4], kv.shape[5],
            rotations[0][0].shape[1],
        )  # fmt: skip
        count = ctypes.c_int64(len(self._layers))
        if not call("baton_layers", self._dtype, self._layers, count, byref(step), work=self._weights_in_all):
            raise MemoryError("no memory for the layers' arguments")

    def set_adapters(self, index: int, linear: str, parts: AdapterParts) -> None:
        """Set the adapters of a layer's `qkv`, `output`, `gate_up` or `down`."""
        weight = getattr(self._layers[index], linear)
        weight.adapters, weight.num_parts = ctypes.addressof(parts.array), len(parts.array)
        self._adapters.append(parts)

    def join(self, group: Group) -> None:
        """Add up the outputs of each layer's `output` and `down` with those of the other processes."""
        self._group = group

    def compute_all(self) -> None:
        """Compute all rows of the last layer from now on, whichever are wanted."""
        self._computes_all = True

    def _group_address(self, tokens: int) -> int | None:
        if self._group is None:
            return None
        num_bytes = tokens * self._hidden_size * self._dtype.itemsize
        assert num_bytes <= self._group.slot_bytes, f"{num_bytes} bytes to add, of {self._group.slot_bytes}"
        return ctypes.addressof(self._group)

    def count_time(self, seconds: Seconds | None) -> None:
        """Add the time of steps to `seconds` from now on; None: no longer."""
        self._seconds = None if seconds is None else ctypes.addressof(seconds)

    def _reserve(self, tokens: int) -> list[int]:
        """Return the addresses of buffers for `tokens` rows, which grow by doubling."""
        if tokens > self._rows:
            self._rows = 1 << (tokens - 1).bit_length()
            self._buffers = tuple(torch.empty(self._rows, width, dtype=self._dtype) for width in self._widths)
        return [buffer.data_ptr() for buffer in self._buffers]


def _layer(layer: LayerWeights, sinks: Tensor | None) -> _Layer:
    softmax = layer.softmax
    return _Layer(
        *map(_weight, (layer.qkv, layer.output, layer.gate_up, layer.down)),
        *map(
            _norm,
            (
                layer.query_norm, layer.key_norm, layer.after_attention, layer.mlp_norm, layer.after_mlp,
                layer.next_norm,
            ),
        ),
        address(sinks), layer.rotation, softmax.sliding_window or 0, softmax.scale, softmax.softcap or 0.0,
        layer.attention_factor, layer.mlp_factor, ACTIVATIONS[layer.activation],
    )  # fmt: skip


def _weight(weight: LinearWeight) -> _Weight:
    panels = weight.panels
    return _Weight(struct_of(panels), address(weight.bias), None, panels.inputs, panels.outputs, 0)


def _norm(norm: NormWeight | None) -> _Norm:
    return _Norm() if norm is None else _Norm(norm.weight.data_ptr(), norm.eps, norm.unit_offset)
