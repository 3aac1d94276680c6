"""LoRA adapters beside linear layers, as native ops read them. The structures are those of ops.h."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref
from dataclasses import dataclass

from torch import Tensor

from kernels.native.ops import call, fields

MAX_RANK = 512
"""The largest rank that adapters.c has room for."""


class Part(ctypes.Structure):
    """The adapters of consecutive outputs of one layer."""

    _fields_ = fields(pointers="down up ranks", sizes="most_rank first outputs")


class Rows(ctypes.Structure):
    """The rows of a step that have adapters, in blocks of one adapter each."""

    _fields_ = fields(pointers="rows blocks", sizes="num_blocks")


class _Adapters(ctypes.Structure):
    _fields_ = fields(pointers="x out parts rows", sizes="stride_x inputs outputs num_parts")


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """N adapters of the outputs from `first` on: down [N, R, inputs], up [N, R, outputs], ranks [N] int64.

    Of an adapter, only the first rows count, as many as its rank, which is 0 if it does not adapt the layer.
    """

    first: int
    down: Tensor
    up: Tensor
    ranks: Tensor


class AdapterParts:
    """All adapters of one linear layer."""

    def __init__(self, weights: Sequence[AdapterWeights]) -> None:
        self._weights = tuple(weights)  # the addresses below are theirs
        self.array = (Part * len(self._weights))(*map(_part, self._weights))


class AdapterBlocks:
    """The rows of a step by adapter: rows [K] int64; blocks [B, 3] int64 of slot, begin and end in `rows`."""

    def __init__(self, rows: Tensor, blocks: Tensor) -> None:
        self._tensors = rows, blocks  # the addresses below are theirs
        self.struct = Rows(rows.data_ptr(), blocks.data_ptr(), len(blocks))


def add_adapters(x: Tensor, out: Tensor, parts: AdapterParts, rows: AdapterBlocks) -> None:
    """Add what adapters make of x [T, inputs] to a layer's outputs [T, outputs], both of contiguous rows."""
    arguments = _Adapters(
        x.data_ptr(), out.data_ptr(), ctypes.addressof(parts.array), ctypes.addressof(rows.struct),
        x.stride(0), x.shape[1], out.shape[1], len(parts.array),
    )  # fmt: skip
    call("baton_add_adapters", x.dtype, byref(arguments), work=x.numel())


def _part(weights: AdapterWeights) -> Part:
    down, up = weights.down, weights.up
    return Part(
        down.data_ptr(), up.data_ptr(), weights.ranks.data_ptr(), down.shape[1], weights.first, up.shape[2]
    )
