"""When the decode steps of one simulated worker ended, and how many sequences were in each."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from engine.core.batch import Batch
from engine.core.sequence import Choice
from sim.sequence import SimSequence
from sim.step_times import Times


class StepRecord:
    """Implements `engine.core.batch.RowTable`.

    Where each step `serves_all` rows, a sequence gets the times of its tokens when it leaves.
    """

    def __init__(self, sequences: Mapping[int, SimSequence], *, serves_all: bool) -> None:
        self._sequences = sequences
        self._serves_all = serves_all
        self.batch: Batch | None = None
        self._num_steps = 0
        self._times = np.zeros(1024)
        self._sizes = np.zeros(1024, dtype=np.int32)

    def add(self, ends: Times | list[float], num_rows: int) -> None:
        """Record decode steps of so many rows, before their tokens are counted."""
        first, end = self._num_steps, self._num_steps + len(ends)
        while end > len(self._times):
            self._times = np.concatenate((self._times, np.zeros(len(self._times))))
            self._sizes = np.concatenate((self._sizes, np.zeros(len(self._sizes), dtype=np.int32)))
        self._times[first:end] = ends
        self._sizes[first:end] = num_rows
        self._num_steps = end

    def token_times(self) -> tuple[Times, NDArray[np.int32]]:
        """Return when each decode step ended, and how many sequences were in it."""
        return self._times[: self._num_steps], self._sizes[: self._num_steps]

    def join(self, choice: Choice) -> None:
        self._sequences[choice.group.handle].joined_at = self._num_steps

    def leave(self, choice: Choice, last: int) -> None:
        assert self.batch is not None
        left = self._sequences[choice.group.handle]
        left.generated = int(self.batch.num_outputs[choice.row])
        if self._serves_all and left.joined_at < self._num_steps:
            left.add_times(self._times[left.joined_at : self._num_steps])

    def set_blocks(self, choice: Choice) -> None:
        """Nothing reads the blocks."""

    def add_block(self, choice: Choice) -> None:
        """Nothing reads the blocks."""
