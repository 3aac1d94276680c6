"""The results of a model's parts, which meet in memory that all processes of a group map.

    arrived, sleeping                   counts of processes, for native ops
    slots    [2, size, slot_bytes]   what each part adds to a sum, in turns
    logits   [rows, vocab_size]      of a step

A process writes its slot, meets the others, and adds up all slots by itself, in the order of the parts: so
each has the same bits, as if one had sent them to all. Slots are used in turns. When a process writes one
again, it has met the others since its last use, and they came to that meeting when they had read it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.group.links import Meeting
from engine.model.parallel.part import Part
from kernels.native import loader
from kernels.native.group import Group

_ALIGNMENT = 64
_COUNTS_BYTES = 2 * _ALIGNMENT
TURNS = 2


@dataclass(frozen=True, slots=True)
class SumSizes:
    """Sizes of the memory for steps of up to `tokens` tokens."""

    tokens: int
    hidden_size: int
    vocab_size: int
    dtype: torch.dtype

    @property
    def slot_bytes(self) -> int:
        num_bytes = self.tokens * max(self.hidden_size * self.dtype.itemsize, torch.float64.itemsize)
        return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT

    @property
    def logits_bytes(self) -> int:
        return self.tokens * self.vocab_size * self.dtype.itemsize


class SharedSums:
    """The collectives of one process of a group, by shared memory; implements `Collectives`.

    `meetings` are those of the first part with all others, or of another part with the first one. Without
    `fd` the memory is made, with it that of another process is mapped.
    """

    def __init__(
        self, part: Part, meetings: Sequence[Meeting], sizes: SumSizes, fd: int | None = None
    ) -> None:
        self._part = part
        self._meetings = meetings
        self._slot_bytes = sizes.slot_bytes
        self._words = part.words(sizes.vocab_size)
        slots = _COUNTS_BYTES + TURNS * part.size * self._slot_bytes
        size = slots + sizes.logits_bytes
        self.fd = os.memfd_create("sums", os.MFD_CLOEXEC) if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, size)  # pages of logits that no step asks for are never allocated
        memory = torch.frombuffer(mmap.mmap(self.fd, size), dtype=torch.uint8)
        self._slots = memory[_COUNTS_BYTES:slots].view(TURNS, part.size, self._slot_bytes)
        self._logits = memory[slots:].view(sizes.dtype).view(sizes.tokens, sizes.vocab_size)
        self._turn = 0
        self._native: Group | None = None
        if loader.library() is not None:
            counts = memory.data_ptr()
            self._native = Group(
                counts, counts + _ALIGNMENT, self._slots.data_ptr(), self._slot_bytes, part.rank, part.size
            )

    @property
    def native(self) -> Group | None:
        """Implements `Collectives`."""
        return self._native

    @property
    def part(self) -> Part:
        return self._part

    def sum(self, own: Tensor) -> Tensor:
        """Implements `Collectives`."""
        num_bytes = own.numel() * own.element_size()
        assert num_bytes <= self._slot_bytes, f"{num_bytes} bytes to add, of {self._slot_bytes}"
        slots = self._slots[self._turn, :, :num_bytes].view(own.dtype)
        self._turn = (self._turn + 1) % TURNS
        if self._native is not None:
            self._native.turn = self._turn
        slots[self._part.rank].copy_(own.reshape(-1))
        self._meet()
        total = slots[0] + slots[1]
        for other in slots[2:]:
            total += other
        return total.view(own.shape)

    def gather_logits(self, own: Tensor) -> Tensor:
        """Implements `Collectives`."""
        rows = own.shape[1]
        self._logits[:rows, self._words] = own[0]
        self._meet()
        return self._logits[None, : 0 if self._part.rank else rows]

    def close(self) -> None:
        """Close the descriptor; the memory is freed when no view of it is left."""
        os.close(self.fd)

    def _meet(self) -> None:
        """Return when all processes have come here, and see what they wrote before."""
        if self._native is not None:
            self._native.meet()
            return
        if self._part.rank:
            self._meetings[0].arrive()
            self._meetings[0].wait()
            return
        for meeting in self._meetings:
            meeting.wait()
        for meeting in self._meetings:
            meeting.arrive()
