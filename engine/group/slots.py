"""The activations and logits that stages of a pipeline pass on, in memory that all of them map.

    hidden  [slots, tokens, hidden_size]   a step's activations; each stage overwrites those of the one before
    logits  [slots, tokens, vocab_size]    of the last stage

Steps take slots in turns, all processes in the same order. There is one more slot than stages, as there is
one more step in flight: a slot is used again when the leader has received the step that had it before.
"""

from __future__ import annotations

import mmap
import os

import torch
from torch import Tensor

from engine.group.sums import SumSizes


class StageSlots:
    """The slots as one stage uses them; implements `Relay`.

    Without `fd` the memory is made, with it that of another process is mapped.
    """

    def __init__(self, num_stages: int, sizes: SumSizes, fd: int | None = None) -> None:
        self._num_slots = num_stages + 1
        hidden, logits = sizes.tokens * sizes.hidden_size, sizes.tokens * sizes.vocab_size
        count = self._num_slots * (hidden + logits)
        self.fd = os.memfd_create("stages", os.MFD_CLOEXEC) if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, count * sizes.dtype.itemsize)  # pages that no step uses are never allocated
        memory = torch.frombuffer(mmap.mmap(self.fd, count * sizes.dtype.itemsize), dtype=sizes.dtype)
        begin = self._num_slots * hidden
        self._hidden = memory[:begin].view(self._num_slots, sizes.tokens, sizes.hidden_size)
        self._logits = memory[begin:].view(self._num_slots, sizes.tokens, sizes.vocab_size)
        self._number = -1
        self._num_tokens = 0

    def begin(self, num_tokens: int) -> None:
        """Take the slot of this stage's next step."""
        assert num_tokens <= self._hidden.shape[1], f"{num_tokens} tokens, of {self._hidden.shape[1]}"
        self._number += 1
        self._num_tokens = num_tokens

    def give_up(self) -> None:
        """The step that was begun last has failed in the first stage, and does not go on."""
        self._number -= 1

    def take(self) -> Tensor:
        """Implements `Relay`."""
        return self._hidden[self._number % self._num_slots, : self._num_tokens]

    def leave(self, hidden: Tensor) -> None:
        """Implements `Relay`."""
        self.take().copy_(hidden)

    def leave_logits(self, logits: Tensor) -> None:
        """Leave the logits [R, vocab_size] of the step that was begun last."""
        self._logits[self._number % self._num_slots, : len(logits)] = logits

    def logits(self, number: int, num_rows: int) -> Tensor:
        """Return the logits [num_rows, vocab_size] of the step with this number, counted from 0."""
        return self._logits[number % self._num_slots, :num_rows]

    def close(self) -> None:
        """Close the descriptor; the memory is freed when no view of it is left."""
        os.close(self.fd)
