"""Decode steps that are sure to follow each other with nothing to decide: a simulation takes them at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.core.batch import Batch
from engine.core.groups.groups import Groups
from engine.core.memory.block_pool import BlockPool
from engine.core.memory.block_tables import BlockTables
from engine.core.sequence import Choice


class DecodeRuns:
    """Finds how many steps of all rows follow each other, and takes them."""

    def __init__(self, pool: BlockPool, batch: Batch, tables: BlockTables, groups: Groups) -> None:
        self._pool = pool
        self._batch = batch
        self._tables = tables
        self._groups = groups

    def num_steps(self, most: int) -> int:
        """Return how many steps, 1 to `most`, follow each other; see `WorkerCore.num_steps_alike`."""
        head = self._groups.roster.next()
        if head is not None:
            most = min(most, self._groups.room.num_turns_in_vain(head) + 1)
        most = max(1, min(most, self._batch.num_steps_to_an_end()))
        if most == 1 or self._has_blocks_for(most - 1):
            return most
        low, high = 1, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._has_blocks_for(middle - 1) else (low, middle - 1)
        return low

    def take(self, ends: NDArray[np.float64]) -> list[Choice]:
        """Take as many steps as there are `ends`, the times in seconds at which they ended.

        Return the choices that have left, since they got the last token they may have.
        """
        num_steps = len(ends)
        if num_steps > 1:
            if self._groups.roster.next() is not None:
                self._groups.room.pass_turns(num_steps - 1)
            self._grow_ahead(num_steps - 1)
        last = self._batch.advance(self._batch.next_rows(), num_steps)
        for choice in last:
            self._batch.leave(choice)
        self._batch.due_times.advance_steps(self._batch.num_rows, ends)
        return last

    def _has_blocks_for(self, num_steps: int) -> bool:
        """Return True if blocks for that many further tokens of each row are promised or available."""
        num_available = self._pool.num_available_blocks
        if (
            self._tables.reserves_maximum
            or num_available >= (num_steps // self._pool.block_size + 1) * self._batch.num_rows
        ):
            return True
        return int(self._batch.growth(num_steps).sum()) <= num_available

    def _grow_ahead(self, num_steps: int) -> None:
        growth = self._batch.growth(num_steps)
        (rows,) = growth.nonzero()
        if rows.size:
            choices = self._batch.choices
            self._tables.grow([choices[row] for row in rows.tolist()], growth[rows].tolist())
