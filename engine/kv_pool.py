"""The KV cache's memory: one block-major tensor that other processes on the host can map.

    kv_pool[num_blocks, num_layers, 2, block_size, num_kv_heads, head_dim]        index 0 keys, 1 values

A block's bytes, all layers together, are contiguous: what a handoff moves or verifies is one piece. On the
CPU the tensor lies in a memfd: a peer that is passed the descriptor over a unix socket can read it, and the
memory goes when the last process that holds it goes, however it ends.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """What one block holds; two workers can exchange blocks only if this is equal."""

    num_layers: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        for field in ("num_layers", "block_size", "num_kv_heads", "head_dim"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} is {getattr(self, field)}; accepted: at least 1")

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        return self.num_layers, 2, self.block_size, self.num_kv_heads, self.head_dim

    @property
    def block_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class KVPool:
    """`num_blocks` blocks of `layout` on `device`, zeroed.

    tensor       [num_blocks, num_layers, 2, block_size, num_kv_heads, head_dim]
    fd           the memfd behind it, owned by the pool; None on a GPU
    block_bytes  size of one block; block b begins at byte b * block_bytes of `fd`
    """

    def __init__(self, layout: BlockLayout, num_blocks: int, device: torch.device | None = None) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks is {num_blocks}; accepted: at least 1")
        self.layout = layout
        self.num_blocks = num_blocks
        self.block_bytes = layout.block_bytes
        self.device = device or torch.device("cpu")
        self.fd: int | None = None
        self._bytes: memoryview | None = None
        if self.device.type == "cpu":
            self.tensor = self._map_shared()
        else:
            self.tensor = torch.zeros((num_blocks, *layout.shape), dtype=layout.dtype, device=self.device)
        self._layers = [self.tensor[:, index] for index in range(layout.num_layers)]

    def layer(self, index: int) -> Tensor:
        """View of one layer, [num_blocks, 2, block_size, num_kv_heads, head_dim]."""
        return self._layers[index]

    def block_bytes_view(self, block: int) -> memoryview:
        """Block `block`'s bytes, writable, without a copy; only where the pool is in host memory."""
        if self._bytes is None:
            raise ValueError(f"block_bytes_view: the pool is on {self.device}; accepted: a pool on the CPU")
        if not 0 <= block < self.num_blocks:
            raise ValueError(f"block is {block}; accepted: 0 to {self.num_blocks - 1}")
        return self._bytes[block * self.block_bytes : (block + 1) * self.block_bytes]

    def close(self) -> None:
        """Give back the descriptor; the memory follows when no view of it is left."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def _map_shared(self) -> Tensor:
        size = self.num_blocks * self.block_bytes
        self.fd = os.memfd_create("kv_pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        # Whoever maps it may rely on the size: a shrunk file would kill its readers with SIGBUS.
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        mapped = mmap.mmap(self.fd, size)
        self._bytes = memoryview(mapped)
        return torch.frombuffer(mapped, dtype=self.layout.dtype).view(self.num_blocks, *self.layout.shape)
