"""The KV cache's memory: one block-major tensor that other processes on the host can map.

    kv_pool[num_blocks, num_layers, 2, block_size, num_kv_heads, head_dim]        index 0 keys, 1 values

With 8-bit KV a block is bytes, [num_blocks, block_bytes], and holds for each layer

    values [2, block_size, num_kv_heads, head_dim] int8 or float8_e4m3fn
    scales [2, num_kv_heads, block_size] float32        a number is value · scale of its token and head

each starting at a multiple of 16 bytes. A head's scales are adjacent, as attention reads them; with a row of
heads for each token, every four bytes would cost a 32-byte access.

A block's bytes, over all layers, are contiguous: a handoff moves and verifies them as one piece. On a CPU the
tensor is in a memfd. A peer that gets the descriptor over a unix socket can read it, and the memory is freed
with the last process that holds it, however that ends.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from kernels.launch import KV_LIMITS

ALIGNMENT = 16
"""In bytes: the widest access of a GPU's thread."""


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """The content of a block. Two workers can exchange blocks only if their layouts are equal."""

    num_layers: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    """The dtype of attention, and of keys and values unless `stored` is given."""
    stored: torch.dtype | None = None
    """An 8-bit dtype, one of KV_LIMITS, with a scale for each token, head, and key or value."""

    def __post_init__(self) -> None:
        for field in ("num_layers", "block_size", "num_kv_heads", "head_dim"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} is {getattr(self, field)}; accepted: at least 1")
        if self.stored is not None and self.stored not in KV_LIMITS:
            accepted = ", ".join(map(str, KV_LIMITS))
            raise ValueError(f"stored is {self.stored}; accepted: None, {accepted}")

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        return self.num_layers, 2, self.block_size, self.num_kv_heads, self.head_dim

    @property
    def block_bytes(self) -> int:
        if self.stored is None:
            return math.prod(self.shape) * self.dtype.itemsize
        return self.num_layers * self.layer_bytes

    @property
    def scales_offset(self) -> int:
        """The offset of the scales in a layer's bytes, in a block of 8-bit KV."""
        return _aligned(2 * self.block_size * self.num_kv_heads * self.head_dim)

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer's values and scales in a block of 8-bit KV."""
        scales = 2 * self.num_kv_heads * self.block_size
        return self.scales_offset + _aligned(scales * torch.float32.itemsize)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


class KVHeads(Protocol):
    """Heads and layers of a pool: all of them in a `KVPool`, some in a `PoolPart`."""

    @property
    def layout(self) -> BlockLayout: ...

    @property
    def tensor(self) -> Tensor: ...

    def layer(self, index: int) -> Tensor: ...

    def scales(self, index: int) -> Tensor | None: ...

    @property
    def all_layers(self) -> tuple[Tensor, Tensor | None]:
        """The numbers and the scales of all layers, with layers as the second dimension."""
        ...


class KVPool:
    """`num_blocks` blocks of `layout` on `device`, zeroed.

    tensor       [num_blocks, num_layers, 2, block_size, num_kv_heads, head_dim], of 8-bit KV
                 [num_blocks, block_bytes] uint8
    fd           the memfd behind it, owned by the pool; None on a GPU. With one of another process's pool, it
                 is that pool
    block_bytes  size of one block; block b begins at byte b * block_bytes of `fd`
    """

    def __init__(
        self,
        layout: BlockLayout,
        num_blocks: int,
        device: torch.device | None = None,
        fd: int | None = None,
    ) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks is {num_blocks}; accepted: at least 1")
        self.layout = layout
        self.num_blocks = num_blocks
        self.block_bytes = layout.block_bytes
        self.device = device or torch.device("cpu")
        self.fd = fd
        self._bytes: memoryview | None = None
        shape: tuple[int, ...] = layout.shape
        dtype = layout.dtype
        if layout.stored is not None:
            shape, dtype = (layout.block_bytes,), torch.uint8
        if self.device.type == "cpu":
            self.tensor = self._map_shared(dtype).view(num_blocks, *shape)
        else:
            self.tensor = torch.zeros((num_blocks, *shape), dtype=dtype, device=self.device)
        self._layers = [self._layer(index) for index in range(layout.num_layers)]
        self.all_layers = _all_layers(self)

    def layer(self, index: int) -> Tensor:
        """Return a layer's numbers as stored, [num_blocks, 2, block_size, num_kv_heads, head_dim]."""
        return self._layers[index][0]

    def scales(self, index: int) -> Tensor | None:
        """Return a layer's scales, [num_blocks, 2, num_kv_heads, block_size]; None unless 8-bit KV."""
        return self._layers[index][1]

    def block_bytes_view(self, block: int) -> memoryview:
        """Return the writable bytes of a block, without a copy. Raises ValueError if the pool is on a GPU."""
        if self._bytes is None:
            raise ValueError(f"block_bytes_view: the pool is on {self.device}; accepted: a pool on the CPU")
        if not 0 <= block < self.num_blocks:
            raise ValueError(f"block is {block}; accepted: 0 to {self.num_blocks - 1}")
        return self._bytes[block * self.block_bytes : (block + 1) * self.block_bytes]

    def close(self) -> None:
        """Close the descriptor; the memory is freed when no view of it is left."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def _layer(self, index: int) -> tuple[Tensor, Tensor | None]:
        """Return views of a layer's numbers and scales."""
        layout = self.layout
        if layout.stored is None:
            return self.tensor[:, index], None
        begin, shape = index * layout.layer_bytes, layout.shape[1:]
        values = self.tensor[:, begin : begin + math.prod(shape)].view(layout.stored)
        begin, by_head = begin + layout.scales_offset, (2, layout.num_kv_heads, layout.block_size)
        num_bytes = math.prod(by_head) * torch.float32.itemsize
        scales = self.tensor[:, begin : begin + num_bytes].view(torch.float32)
        return values.view(self.num_blocks, *shape), scales.view(self.num_blocks, *by_head)

    def _map_shared(self, dtype: torch.dtype) -> Tensor:
        size = self.num_blocks * self.block_bytes
        if self.fd is None:
            self.fd = os.memfd_create("kv_pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self.fd, size)
            # Sealed, so that mappings can rely on the size: a shrunk file would kill its readers with SIGBUS.
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)
        mapped = mmap.mmap(self.fd, size)
        self._bytes = memoryview(mapped)
        return torch.frombuffer(mapped, dtype=dtype)


class PoolPart:
    """Some KV heads and layers of a pool, those that one process computes; the memory is the pool's own."""

    def __init__(self, pool: KVPool, heads: slice | None = None, layers: slice | None = None) -> None:
        """None: all of them. Layers are counted from the first of `layers`."""
        whole = pool.layout
        self._pool = pool
        self._heads = heads or slice(0, whole.num_kv_heads)
        self._layers = layers or slice(0, whole.num_layers)
        num_heads, num_layers = (each.stop - each.start for each in (self._heads, self._layers))
        self.layout = replace(whole, num_kv_heads=num_heads, num_layers=num_layers)
        self.tensor = pool.tensor
        if whole.stored is None:
            self.tensor = pool.tensor[:, self._layers, :, :, self._heads]
        self.all_layers = _all_layers(self)

    def layer(self, index: int) -> Tensor:
        """Return a layer's numbers of these heads, as `KVPool.layer` does."""
        return self._pool.layer(self._layers.start + index)[..., self._heads, :]

    def scales(self, index: int) -> Tensor | None:
        """Return a layer's scales of these heads, as `KVPool.scales` does."""
        scales = self._pool.scales(self._layers.start + index)
        return None if scales is None else scales[:, :, self._heads]


def _all_layers(pool: KVPool | PoolPart) -> tuple[Tensor, Tensor | None]:
    num_layers = pool.layout.num_layers
    if pool.layout.stored is None:
        return pool.tensor, None
    first, second = (pool.layer(index) for index in (0, num_layers - 1))
    num_bytes = (second.data_ptr() - first.data_ptr()) // max(1, num_layers - 1)
    scales = pool.scales(0)
    assert scales is not None, "8-bit KV without scales"
    return _with_layers(first, num_layers, num_bytes), _with_layers(
        scales, num_layers, num_bytes // scales.itemsize
    )


def _with_layers(first: Tensor, num_layers: int, stride: int) -> Tensor:
    """Return a view of all layers, of which this is the first; the next begins `stride` numbers later."""
    shape, strides = first.shape, first.stride()
    return first.as_strided((shape[0], num_layers, *shape[1:]), (strides[0], stride, *strides[1:]))
