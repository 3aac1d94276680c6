"""Paged KV with random content on a device: blocks in any order, and NaN where nothing is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class PagedKV:
    """One layer: kv_layer [num_blocks, 2, block_size, kv_heads, head_dim], and each sequence's blocks."""

    kv_layer: Tensor
    block_tables: Tensor
    context_lens: Tensor

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor]:
        """The arguments in the order of the attention ops."""
        return self.kv_layer, self.block_tables, self.context_lens


def paged(
    lengths: Sequence[int], kv_heads: int, head_dim: int, dtype: torch.dtype, generator: torch.Generator
) -> PagedKV:
    """Return the KV of a sequence of each length, on the generator's device."""
    device = generator.device
    context = torch.tensor(lengths, device=device, dtype=torch.int32)
    width = -(-max(lengths) // BLOCK_SIZE)
    needed = len(lengths) * width
    order = 1 + torch.randperm(needed, generator=generator, device=device)
    tables = order.view(len(lengths), width).to(torch.int32)
    shape = (needed + 1, 2, BLOCK_SIZE, kv_heads, head_dim)
    kv_layer = torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype)
    position = torch.arange(width * BLOCK_SIZE, device=device).view(1, width, 1, BLOCK_SIZE)
    free = (position >= context.view(-1, 1, 1, 1)).expand(-1, -1, 2, -1).reshape(needed, 2, BLOCK_SIZE)
    kv_layer[tables.view(-1).long()] = kv_layer[tables.view(-1).long()].masked_fill(
        free[..., None, None], float("nan")
    )
    return PagedKV(kv_layer, tables, context)
