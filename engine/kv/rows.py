"""The KV pool as rows: one token's keys, or its values, in one layer.

    row(layer, kind, slot) = (block · num_layers · 2 + layer · 2 + kind) · block_size + offset

Seen as rows of num_kv_heads · head_dim numbers, a pool has the same row indexes for every layer and kind when
they are counted from the first row of that layer and kind. `num_layers` are those of the whole pool, also
where some layers or heads are seen. `engine.kv.quantised_rows` reads 8-bit KV.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from engine.kv.kv_pool import BlockLayout, KVHeads


class KVRows(Protocol):
    """The pool as rows of one token's keys (or values) in one layer.

    layout          the pool's
    width           num_kv_heads · head_dim, the numbers in a row
    rows_per_block  distance from a row to the row of the same offset in the next block
    """

    layout: BlockLayout
    width: int
    rows_per_block: int

    def of_slots(self, slots: Tensor) -> Tensor:
        """Return the rows of slots (block * block_size + offset)."""

    def store(self, layer: int, rows: Tensor, key: Tensor, value: Tensor) -> None:
        """Write key and value [n, num_kv_heads, head_dim] to rows [n]."""

    def gather(self, layer: int, rows: Tensor) -> Tensor:
        """Return keys and values [2, b, N, num_kv_heads, head_dim] of rows [b, N], until the next call."""


def rows_at(kv: KVRows, tables: Tensor, positions: Tensor) -> Tensor:
    """Return the rows [b, N] of positions [b, N] by block tables [b, max_blocks]."""
    size = kv.layout.block_size
    places = torch.div(positions, size, rounding_mode="floor")
    blocks = tables.long().gather(1, places)
    return blocks * kv.rows_per_block + (positions - places * size)


class Scratch:
    """A buffer that is kept, because one of this size comes from the kernel page by page.

    To allocate one for each layer costs ten times what it costs to fill it.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._memory = torch.empty(0, dtype=dtype)

    def reserve(self, size: int) -> Tensor:
        """Return [size], valid until the next call."""
        if self._memory.numel() < size:
            # By doubling: a context that grows by a token a step must not need a new buffer each time.
            self._memory = torch.empty(1 << (size - 1).bit_length(), dtype=self._memory.dtype)
        return self._memory[:size]


class PoolRows:
    """The rows of a pool, or of some of its heads and layers, that is not quantised."""

    def __init__(self, pool: KVHeads) -> None:
        layout = pool.layout
        self.layout = layout
        self.width = layout.num_kv_heads * layout.head_dim
        block, _, row, _, _ = pool.layer(0).stride()
        self.rows_per_block = block // row
        layers = [pool.layer(index) for index in range(layout.num_layers)]
        self._keys = [self._rows_from(layer[:, 0]) for layer in layers]
        self._values = [self._rows_from(layer[:, 1]) for layer in layers]
        self._scratch = Scratch(layout.dtype)

    def _rows_from(self, kind: Tensor) -> Tensor:
        """Return the pool's rows from the first one of some keys or values, up to their last."""
        count = (len(kind) - 1) * self.rows_per_block + self.layout.block_size
        return kind.as_strided((count, self.width), (kind.stride(1), 1))

    def of_slots(self, slots: Tensor) -> Tensor:
        size = self.layout.block_size
        return torch.div(slots, size, rounding_mode="floor") * (self.rows_per_block - size) + slots

    def store(self, layer: int, rows: Tensor, key: Tensor, value: Tensor) -> None:
        self._keys[layer].index_copy_(0, rows, key.reshape(-1, self.width))
        self._values[layer].index_copy_(0, rows, value.reshape(-1, self.width))

    def gather(self, layer: int, rows: Tensor) -> Tensor:
        flat = rows.view(-1)
        found = self._scratch.reserve(2 * flat.numel() * self.width).view(2, flat.numel(), self.width)
        torch.index_select(self._keys[layer], 0, flat, out=found[0])
        torch.index_select(self._values[layer], 0, flat, out=found[1])
        return found.view(2, *rows.shape, self.layout.num_kv_heads, self.layout.head_dim)
