"""The KV of a group whose processes share no memory.

The leader's pool has all heads of each block, a follower's pool only the heads that the follower computes. So
blocks are whole where they are handed over, verified, kept on disks and swapped, as in a worker of one
process:

    after each step    followers send the rows that they have written, and the leader writes them to its pool
    before each step   the leader sends blocks that the step reads and whose content followers lack, since it
                       came from elsewhere: from another worker, a disk, host memory or a copy in the pool

Steps write a block from its first token on. A block that was allocated and then read without that has its
content from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.kv.kv_pool import KVHeads
from engine.model.attention.step_batch import StepBatch

_ALL = slice(None)
_Index = tuple[Tensor | slice, ...]


@dataclass(frozen=True, slots=True)
class Places:
    """Whole blocks, or the slots of some tokens, in all layers of a pool."""

    layers: _Index
    """Indexes a pool, [num_blocks, num_layers, 2, block_size, num_kv_heads, head_dim]."""
    values: _Index
    """Indexes the numbers of a layer of 8-bit KV, [num_blocks, 2, block_size, num_kv_heads, head_dim]."""
    scales: _Index
    """Indexes its scales, [num_blocks, 2, num_kv_heads, block_size]."""

    @classmethod
    def of_blocks(cls, blocks: Tensor) -> Places:
        return cls((blocks,), (blocks,), (blocks,))

    @classmethod
    def of_slots(cls, slots: Tensor, block_size: int) -> Places:
        blocks = torch.div(slots, block_size, rounding_mode="floor")
        offsets = slots - blocks * block_size
        each_layer = blocks, _ALL, _ALL, offsets
        return cls(each_layer, (blocks, _ALL, offsets), each_layer)


def read(heads: KVHeads, places: Places) -> Tensor:
    """Return the bytes of some places, [num_bytes] uint8.

    Those of 8-bit KV come layer by layer, numbers before scales.
    """
    found = [tensor[index].view(torch.uint8).flatten() for tensor, index in _parts(heads, places)]
    return found[0] if len(found) == 1 else torch.cat(found)


def empty(heads: KVHeads, places: Places) -> Tensor:
    """Return room for what `read` returns for the same heads, layers and places of another pool."""
    num_bytes = sum(
        _found_shape(tensor, index).numel() * tensor.element_size() for tensor, index in _parts(heads, places)
    )
    return torch.empty(num_bytes, dtype=torch.uint8, device=heads.tensor.device)


def write(heads: KVHeads, places: Places, content: Tensor) -> None:
    """Write what `read` has returned for the same heads, layers and places of another pool."""
    at = 0
    for tensor, index in _parts(heads, places):
        shape = _found_shape(tensor, index)
        num_bytes = shape.numel() * tensor.element_size()
        part = content[at : at + num_bytes]
        if at:  # it may begin at an address that its type does not allow
            part = part.clone()
        tensor[index] = part.view(tensor.dtype).view(shape)
        at += num_bytes
    assert at == len(content), f"{len(content)} bytes for places of {at}"


def _parts(heads: KVHeads, places: Places) -> Iterator[tuple[Tensor, _Index]]:
    if heads.layout.stored is None:
        yield heads.tensor, places.layers
        return
    for layer in range(heads.layout.num_layers):
        values, scales = heads.layer(layer), heads.scales(layer)
        assert scales is not None, "KV of 8 bits has scales"
        yield values.view(torch.uint8), places.values  # torch indexes fp8 in some ways only
        yield scales, places.scales


def _found_shape(tensor: Tensor, index: _Index) -> torch.Size:
    """Return the shape of `tensor[index]`: the places come first."""
    assert isinstance(index[0], Tensor)
    rest = [
        size
        for dim, size in enumerate(tensor.shape)
        if dim >= len(index) or not isinstance(index[dim], Tensor)
    ]
    return torch.Size([len(index[0]), *rest])


class ForeignBlocks:
    """The blocks that followers lack unless a step writes them: those allocated and not begun by a step."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._is_foreign = np.zeros(num_blocks, dtype=bool)
        self._block_size = block_size

    def add(self, block: int) -> None:
        """Take in that a block was allocated: its content is undefined."""
        self._is_foreign[block] = True

    def take(self, batch: StepBatch) -> list[int]:
        """Return the blocks that a step reads and that followers lack, and count them as known to them.

        The tensors of the batch are on the CPU.
        """
        slots = batch.slot_mapping.numpy()
        self._is_foreign[slots[slots % self._block_size == 0] // self._block_size] = False
        num_before = batch.context_lens.numpy() - np.diff(batch.cu_seqlens_q.numpy())
        num_read = -(-num_before // self._block_size)
        tables = batch.block_tables.numpy()
        read = tables[np.arange(tables.shape[1]) < num_read[:, None]]
        lacking: list[int] = np.unique(read[self._is_foreign[read]]).tolist()
        self._is_foreign[lacking] = False
        return lacking
