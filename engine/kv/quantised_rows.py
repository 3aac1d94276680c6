"""8-bit KV on the CPU: quantised when stored, expanded when gathered."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kv.kv_pool import KVHeads
from engine.kv.rows import Scratch
from kernels.store_kv import store_kv_reference


class QuantisedRows:
    """The rows of a pool with scales.

    Scales are between the rows of one layer and the next. So rows are no regular grid through the whole pool,
    and a row is named by its slot.
    """

    def __init__(self, pool: KVHeads) -> None:
        layout = pool.layout
        self.layout = layout
        self.width = layout.num_kv_heads * layout.head_dim
        self.rows_per_block = layout.block_size
        self._pool = pool
        self._scratch = Scratch(layout.dtype)
        self._numbers: Tensor | None = None
        if layout.stored is torch.float8_e4m3fn:
            # torch converts fp8 number by number, which takes five times as long as a lookup by byte.
            self._numbers = torch.arange(256).byte().view(torch.float8_e4m3fn).to(layout.dtype)

    def of_slots(self, slots: Tensor) -> Tensor:
        return slots

    def store(self, layer: int, rows: Tensor, key: Tensor, value: Tensor) -> None:
        store_kv_reference(key, value, self._pool.layer(layer), rows, self._pool.scales(layer))

    def gather(self, layer: int, rows: Tensor) -> Tensor:
        values, scales = self._pool.layer(layer), self._pool.scales(layer)
        assert scales is not None
        # torch gathers int8 number by number, and the same bytes as fp8 four times as fast.
        as_fp8 = values.view(torch.float8_e4m3fn)
        size, shape = self.layout.block_size, (2, *rows.shape, self.layout.num_kv_heads, self.layout.head_dim)
        blocks = torch.div(rows, size, rounding_mode="floor")
        offsets = rows - blocks * size
        found = self._scratch.reserve(2 * rows.numel() * self.width).view(shape)
        for kind in range(2):
            self._expand(as_fp8[blocks, kind, offsets].view(values.dtype), found[kind])
            found[kind].mul_(scales[blocks, kind, :, offsets][..., None])
        return found

    def _expand(self, stored: Tensor, found: Tensor) -> None:
        if self._numbers is None:
            found.copy_(stored)
        else:
            indexes = stored.view(torch.uint8).view(-1).int()
            torch.index_select(self._numbers, 0, indexes, out=found.view(-1))
