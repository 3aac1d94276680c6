"""Copies blocks of a pool to host memory and back, beside the steps.

On a GPU scattered blocks are first gathered into a buffer, which is far quicker than the bus. They go over
the bus in one copy for each run of neighbouring slots. The way back is the same.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.core.report import Mark
from engine.device import CopyStream, upload, upload_ids
from kernels.copy_blocks import gather_blocks, scatter_blocks

BUFFER_BYTES = 32 * 1024 * 1024
"""Size of the buffer on the device. The bus is busy with it for over half a millisecond, which hides the
gathering before and after."""


@dataclass(frozen=True, slots=True)
class Copying:
    """Blocks on their way, and marks of their progress."""

    num_blocks: int
    begun: Mark
    read: Mark
    """Once reached, the source may be overwritten."""
    ended: Mark


class BlockCopies:
    """`pool` [num_blocks, ...] on any device; `slots` [num_slots, ...], blocks of the same bytes on the host.

    Calls must come from one thread at a time. They return once the copies are queued; on a CPU the copies are
    done then. Copies run in the order of the calls. With `is_locked`, other copies have page-locked `slots`.
    """

    def __init__(self, pool: Tensor, slots: Tensor, *, is_locked: bool = False) -> None:
        self._pool, self._slots = _words(pool), _words(slots)
        self._memory = slots
        """Stays page-locked as long as this object lives."""
        self._stream = CopyStream(pool.device)
        if pool.device.type == "cuda" and not is_locked:
            page_lock(slots)
        row_bytes = self._pool.shape[1] * self._pool.element_size()
        num_rows = min(len(slots), max(1, BUFFER_BYTES // row_bytes))
        with self._stream.behind(None):
            self._buffer = self._pool.new_empty((num_rows, self._pool.shape[1]))
            self._warm_up()

    def store(self, blocks: Sequence[int], slots: Sequence[int], behind: Mark | None = None) -> Copying:
        """Copy blocks of the pool to slots once `behind` is reached: the blocks have their content."""
        with self._stream.behind(behind):
            begun = read = self._stream.mark()
            for buffer, ids, places in self._pieces(blocks, slots):
                gather_blocks(self._pool, ids, buffer)
                read = self._stream.mark()
                for begin, slot, length in runs(places):
                    self._slots[slot : slot + length].copy_(buffer[begin : begin + length], non_blocking=True)
            return Copying(len(blocks), begun, read, self._stream.mark())

    def load(self, slots: Sequence[int], blocks: Sequence[int], behind: Mark | None = None) -> Copying:
        """Copy slots to blocks of the pool once `behind` is reached: nothing uses the blocks any more."""
        with self._stream.behind(behind):
            begun = self._stream.mark()
            for buffer, ids, places in self._pieces(blocks, slots):
                for begin, slot, length in runs(places):
                    buffer[begin : begin + length].copy_(self._slots[slot : slot + length], non_blocking=True)
                scatter_blocks(buffer, self._pool, ids)
            ended = self._stream.mark()
            return Copying(len(blocks), begun, ended, ended)

    def _warm_up(self) -> None:
        """Compile the kernels before a request waits for them; use only the buffer, as the pool is in use."""
        if self._pool.device.type == "cuda":
            first, block = upload_ids([0], self._pool.device), self._buffer[:1]
            gather_blocks(block, first, block)
            scatter_blocks(block, block, first)

    def _pieces(
        self, blocks: Sequence[int], slots: Sequence[int]
    ) -> Iterator[tuple[Tensor, Tensor, Sequence[int]]]:
        """Yield (part of the buffer, block numbers on the device, slots) for each piece that fits."""
        assert len(blocks) == len(slots), (len(blocks), len(slots))
        size = min(len(self._buffer), len(blocks)) or 1
        pieces = [blocks[start : start + size] for start in range(0, len(blocks), size)]
        # Each begins at a multiple of 16 bytes: for another pointer kernels would be compiled, as steps wait.
        padded = np.zeros((len(pieces), size + size % 2), dtype=np.int64)
        for row, piece in zip(padded, pieces, strict=True):
            row[: len(piece)] = piece
        uploaded = upload(padded, self._pool.device)
        for place, piece in enumerate(pieces):
            places = slots[place * size : place * size + len(piece)]
            yield self._buffer[: len(piece)], uploaded[place, : len(piece)], places


def runs(slots: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (position, slot, length) of each stretch of neighbouring slots."""
    begin = 0
    for end in range(1, len(slots) + 1):
        if end == len(slots) or slots[end] != slots[end - 1] + 1:
            yield begin, slots[begin], end - begin
            begin = end


def page_lock(memory: Tensor) -> None:
    """Page-lock host memory as long as the tensor lives, so copies to and from a GPU need no thread.

    torch's own pinned tensors do not fit: they come in powers of two, and cannot be in a memfd.
    """
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch's has no types
    address = memory.data_ptr()
    torch.cuda.check_error(runtime.cudaHostRegister(address, memory.nbytes, 0))
    # Not at exit: the driver is gone by then, and has released everything.
    weakref.finalize(memory, runtime.cudaHostUnregister, address).atexit = False


def _words(blocks: Tensor) -> Tensor:
    """A row of whole words for each block, whatever is in it: wide accesses, and no rounding on the way."""
    rows = blocks.flatten(1).view(torch.uint8)
    return rows.view(torch.int64) if rows.shape[1] % 8 == 0 else rows
