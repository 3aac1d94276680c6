"""Decode steps that are taken many at once: for the simulator alone. No live worker imports this module.

While only decodes run, many steps follow each other with nothing to decide: each of them adds one token to
each row. A live worker has to compute them one by one. A simulator that played them one by one would be half
as fast, so it asks how many such steps follow each other, and counts all of their tokens at once.

The result equals that of the steps one by one, to the last bit:
`tests/sim/play/test_simulation.py::test_stretches_are_exactly_their_steps` plays whole fleets both ways, and
`tests/engine/core/test_simulated_runs.py` compares the columns of a batch. `router.core.simulated_runs` takes
the tokens of such steps from one report.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.core.batch import Batch
from engine.core.due_times import HOPELESS_GAPS, ROUNDING_S, DueTimes
from engine.core.memory.stores import BlockPool
from engine.core.sequence import Choice
from engine.core.turns.worker_core import WorkerCore

Times = NDArray[np.float64]
"""Ascending, in seconds."""


class DecodeRuns:
    """Finds how many steps of all rows of a worker follow each other, and takes them."""

    def __init__(self, core: WorkerCore, pool: BlockPool) -> None:
        self._core = core
        self._batch = core.batch
        self._tables = core.tables
        self._roster = core.groups.roster
        self._room = core.groups.room
        self._pool = pool

    def num_steps(self, most: int) -> int:
        """Return how many decode steps, 1 to `most`, are sure to follow each other with nothing to decide.

        There are rows, `grow_rows` and `start_waiting` have been called, and no prompt is to be computed.
        """
        head = self._roster.next()
        if head is not None:
            most = min(most, self._room.num_turns_in_vain(head) + 1)
        most = max(1, min(most, num_steps_to_an_end(self._batch)))
        if most == 1 or self._has_blocks_for(most - 1):
            return most
        low, high = 1, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._has_blocks_for(middle - 1) else (low, middle - 1)
        return low

    def take(self, ends: Times) -> list[Choice]:
        """Take as many steps of all rows as there are `ends`, the times at which they ended.

        Return the choices that have left, since they got the last token they may have.
        """
        num_before_last = len(ends) - 1
        self._core.num_steps += len(ends)
        if num_before_last:
            if self._roster.next() is not None:
                self._room.num_turns_unasked += num_before_last
            self._grow_ahead(num_before_last)
        return advance(self._batch, ends)

    def _has_blocks_for(self, num_steps: int) -> bool:
        """Return True if blocks for that many further tokens of each row are promised or available."""
        num_available = self._pool.num_available_blocks
        if (
            self._tables.reserves_maximum
            or num_available >= (num_steps // self._pool.block_size + 1) * self._batch.num_rows
        ):
            return True
        return int(growth(self._batch, num_steps, self._pool.block_size).sum()) <= num_available

    def _grow_ahead(self, num_steps: int) -> None:
        growths = growth(self._batch, num_steps, self._pool.block_size)
        (rows,) = growths.nonzero()
        if rows.size:
            choices = self._batch.choices
            self._tables.grow([choices[row] for row in rows.tolist()], growths[rows].tolist())


def num_steps_to_an_end(batch: Batch) -> int:
    """Return the number of steps until a row has the last token it may have; there is a row."""
    n = batch.num_rows
    return int(np.minimum.reduce(batch.limits[:n] - batch.num_outputs[:n]))


def growth(batch: Batch, num_steps: int, block_size: int) -> NDArray[np.int64]:
    """Return the number of blocks that each row's next `num_steps` tokens begin."""
    positions = batch.positions[: batch.num_rows]
    return (positions + num_steps) // block_size - positions // block_size


def advance(batch: Batch, ends: Times) -> list[Choice]:
    """Give each row, all of which have a token, one more at each of `ends`; return those that have left.

    No row has the last token it may have before the last of these steps.
    """
    rows, due = slice(0, batch.num_rows), batch.due_times
    if len(ends) > 1:
        if _may_be_hopeless(due, rows, ends):
            for end in ends[:-1].tolist():
                due.advance(rows, end)
        else:
            due.gaps[rows] += len(ends) - 1
        _count_tokens(batch, len(ends) - 1)
    last = batch.advance(rows)
    for choice in last:
        batch.leave(choice)
    due.advance(slice(0, batch.num_rows), float(ends[-1]))
    return last


def _count_tokens(batch: Batch, num_steps: int) -> None:
    """Count the tokens of steps that are not the last ones of any row."""
    batch.positions[: batch.num_rows] += num_steps
    batch.num_outputs[: batch.num_rows] += num_steps
    batch.num_context_tokens += num_steps * batch.num_rows


def _may_be_hopeless(due: DueTimes, rows: slice, ends: Times) -> bool:
    """Return False if no row starts a new line in steps that ended at `ends`."""
    if np.minimum.reduce(due.next_due[rows]) >= ends[-1]:
        return False  # no token is late
    tpot = due.tpot[rows]
    first_due = due.line[rows] + due.gaps[rows] * tpot
    for pace in set(tpot[tpot > 0].tolist()):
        latest = float(np.maximum.reduce(ends - np.arange(len(ends)) * pace)) - HOPELESS_GAPS * pace
        first = float(np.minimum.reduce(first_due, where=tpot == pace, initial=np.inf))
        if first < latest + ROUNDING_S:
            return True
    return False
