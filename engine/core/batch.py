"""The running choices as a structure of arrays that is updated in place, and the steps that their rows take.

Joining, leaving and growing touch one row; a step touches columns. Rows stay contiguous: the last row takes
the place of one that leaves. The columns here are those that scheduling needs; an executor keeps its own
columns (token ids, block tables, sampling parameters) in a `RowTable` that follows every change of rows.

A `Step` is one step from its plan until its tokens are known, without its tensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.core.due_times import MEAN_GAPS, DueTimes
from engine.core.sequence import Choice, Phase, SequenceGroup
from scheduling.cost_model import StepShape
from scheduling.step import DecodeLoad
from scheduling.value import value

MAX_PROMPT_ROWS = 256
"""Prompt positions of one step whose logits are computed. 67 MB for a vocabulary of 128k in 16 bits."""
Rows = slice | NDArray[np.int64]
"""Rows that follow each other, with both ends given, or any others."""


class RowTable(Protocol):
    """The executor's part of each row."""

    def join(self, choice: Choice) -> None:
        """A choice has the row `choice.row`, behind all others."""
        ...

    def leave(self, choice: Choice, last: int) -> None:
        """A choice gives up its row, into which row `last` moves."""
        ...

    def set_blocks(self, choice: Choice) -> None:
        """A row has the block table of its choice from now on."""
        ...

    def add_block(self, choice: Choice) -> None:
        """The block table of a row has grown by its last block."""
        ...


class Batch:
    """Columns over the running rows."""

    def __init__(self, max_rows: int, block_size: int, rows: RowTable, num_micro_batches: int = 1) -> None:
        self.max_rows = max_rows
        self._num_micro_batches = num_micro_batches
        self.choices: list[Choice] = []
        self.num_rows = 0
        self.positions = np.zeros(max_rows, dtype=np.int64)
        """Where in its sequence each row's newest token stands; its KV is not written yet."""
        self.num_outputs = np.zeros(max_rows, dtype=np.int64)
        """Tokens in flight included."""
        self._is_pending = np.zeros(max_rows, dtype=np.bool_)
        """The newest token is still in flight."""
        self._num_launches = 0
        self._launched = np.zeros(max_rows, dtype=np.int64)
        """The launch that each row was in last, of all micro-batches."""
        self.limits = np.zeros(max_rows, dtype=np.int64)
        """The output tokens that each row may have."""
        # Steps of unequal length leave stages idle, so no gap of a pipeline borrows from later ones.
        self.due_times = DueTimes(max_rows, MEAN_GAPS if num_micro_batches == 1 else 1.0)
        self.table = rows
        self.num_context_tokens = 0
        """Tokens that the rows' next step attends to."""
        self._columns = (
            self.positions, self.num_outputs, self._is_pending, self._launched, self.limits,
            *self.due_times.columns,
        )  # fmt: skip
        self._block_size = block_size

    def join(self, choice: Choice) -> None:
        """Add a row; everything but its newest token is computed, or that too if `advance` adds the next."""
        row = self.num_rows
        assert row < self.max_rows
        group, num_outputs = choice.group, choice.num_outputs
        position = len(group.spec.prompt_token_ids) + num_outputs - 1
        self.choices.append(choice)
        self.num_rows += 1
        choice.row = row
        self.positions[row] = position
        self.num_outputs[row] = num_outputs
        self._is_pending[row] = False
        self._launched[row] = self._num_launches
        self.limits[row] = choice.limit
        self.num_context_tokens += position + 1
        self.due_times.set(row, group.spec.tpot_ms, group.spec.itl_ms, choice.due)
        self.table.join(choice)

    def leave(self, choice: Choice) -> None:
        """Remove a row; the last one moves into its place."""
        row, last = choice.row, self.num_rows - 1
        assert self.choices[row] is choice
        choice.due = self.due_times.get(row)
        self.num_context_tokens -= int(self.positions[row]) + 1
        self.table.leave(choice, last)
        moved = self.choices.pop()
        self.num_rows = last
        if row != last:
            self.choices[row] = moved
            moved.row = row
            for column in self._columns:
                column[row] = column[last]
        choice.row = -1

    def next_rows(self) -> Rows:
        """Return the rows of the next step: all of them, or those of the next micro-batch.

        A micro-batch has rows whose newest tokens are known, at most an equal share of all rows, and those
        first that have waited longest.
        """
        if self._num_micro_batches == 1:
            return slice(0, self.num_rows)
        (rows,) = (~self._is_pending[: self.num_rows]).nonzero()
        share = -(-self.num_rows // self._num_micro_batches)
        if len(rows) > share:
            rows = rows[np.argsort(self._launched[rows], kind="stable")[:share]]
        return rows

    def no_rows(self) -> Rows:
        """Return the rows of a step without decodes."""
        return slice(self.num_rows, self.num_rows) if self._num_micro_batches == 1 else _NO_ROWS

    def with_joined(self, rows: Rows, first_row: int) -> Rows:
        """Return the rows of a step together with those from `first_row`, which have joined since."""
        if isinstance(rows, slice):
            return slice(rows.start, self.num_rows)
        return np.concatenate((rows, np.arange(first_row, self.num_rows)))

    def choices_of(self, rows: Rows) -> list[Choice]:
        if isinstance(rows, slice):
            return self.choices[rows]
        return [self.choices[row] for row in rows.tolist()]

    def context_of(self, rows: Rows) -> int:
        """Return the tokens that the next step of `rows` attends to."""
        if isinstance(rows, slice):
            return self.num_context_tokens if rows.start < rows.stop else 0
        return int(self.positions[rows].sum()) + len(rows)

    def advance(self, rows: Rows) -> list[Choice]:
        """Count the token that a launched step appends to each of `rows`.

        Return the choices that get the last one they may have.
        """
        self.positions[rows] += 1
        self.num_outputs[rows] += 1
        self.num_context_tokens += num_in(rows)
        (full,) = (self.num_outputs[rows] >= self.limits[rows]).nonzero()
        choices = self.choices_of(rows) if full.size else []
        return [choices[place] for place in full.tolist()]

    def skip(self, row: int, num_tokens: int) -> None:
        """Count tokens that come before the one that the next step draws for a row."""
        self.positions[row] += num_tokens
        self.num_outputs[row] += num_tokens
        self.num_context_tokens += num_tokens
        self.due_times.skip(row, num_tokens)

    def mark_pending(self, rows: Rows) -> None:
        """Take in that the newest tokens of `rows` are in flight."""
        self._is_pending[rows] = True
        self._num_launches += 1
        self._launched[rows] = self._num_launches

    def mark_known(self, rows: Rows) -> None:
        """Take in that the newest tokens of `rows` are known."""
        self._is_pending[rows] = False

    def decode_load(self, at_s: float, rows: Rows) -> DecodeLoad:
        """Return `rows` as a step rule sees them that begins at `at_s`, when what is in flight is over.

        The slack is that of all rows, since those of other micro-batches wait behind this one.
        """
        n, due = self.num_rows, self.due_times
        if not n:
            return _NOTHING
        is_pending = self._is_pending[:n]
        slack_s = due.slack_s(n, at_s, is_pending if is_pending.any() else None)
        return DecodeLoad(num_in(rows), self.context_of(rows), slack_s, due.gap_limit_s(n))

    def num_known_outputs(self) -> list[int]:
        """Return the output tokens of each row, without those in flight."""
        n = self.num_rows
        known: list[int] = (self.num_outputs[:n] - self._is_pending[:n]).tolist()
        return known

    def rows_at_block_start(self) -> list[Choice]:
        """Return the choices whose newest token begins a block."""
        (begins,) = (self.positions[: self.num_rows] % self._block_size == 0).nonzero()
        return [self.choices[row] for row in begins.tolist()]


def num_in(rows: Rows) -> int:
    """Return the number of rows."""
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


@value
class ChunkWork:
    """The next tokens of one prompt, as a part of a step."""

    group: SequenceGroup
    begin: int
    """Where in the context the chunk begins."""
    end: int
    wants_logits: bool
    """A first token is drawn from the logits of its last token."""
    prompt_rows: range
    """Positions in the context whose logits are needed too."""

    @property
    def is_void(self) -> bool:
        """True if the prompt has ended since the chunk was launched."""
        return self.group.phase is Phase.ENDED


def _no_rows() -> NDArray[np.int64]:
    return np.empty(0, dtype=np.int64)


@dataclass(slots=True, eq=False)
class Step:
    """The work of one step. Its rows are as at its launch; their choices may have moved or ended since."""

    num_decodes: int
    chunks: list[ChunkWork]
    shape: StepShape
    rows: Rows
    """The rows that get a token: its decodes, and from its launch on the choices that join with it."""
    num_recomputed: int = 0
    prefilled: list[SequenceGroup] = field(default_factory=list)
    """Groups whose prompt it completes, and whose first tokens it draws."""
    joining: list[SequenceGroup] = field(default_factory=list)
    """The same, and those that had run before a preemption."""
    choices: list[Choice] = field(default_factory=list)
    """The choice of each row that got a token."""
    positions: NDArray[np.int64] = field(default_factory=_no_rows)
    """The position of each token whose KV it writes for these rows."""
    last: list[Choice] = field(default_factory=list)
    """Choices that have left the batch with it, since they got the last token they may have."""
    held: list[int] = field(default_factory=list)
    """Blocks that are not needed any more and that it may still write to: given back when it is over."""

    def row_of(self, place: int) -> int:
        """Return the row that one of its choices had when the tokens were drawn."""
        return int(self.rows.start) + place if isinstance(self.rows, slice) else int(self.rows[place])

    @property
    def groups(self) -> set[SequenceGroup]:
        """All groups that it computes for."""
        return {*(chunk.group for chunk in self.chunks), *(choice.group for choice in self.choices)}


def within_rows(
    chunks: Iterable[tuple[SequenceGroup, int]], max_rows: int = MAX_PROMPT_ROWS
) -> list[tuple[SequenceGroup, int]]:
    """Return (prompt, number of next tokens) cut so that at most `max_rows` positions need logits.

    Chunks after the first may be left out.
    """
    kept = []
    for group, num_tokens in chunks:
        begin = group.num_computed_tokens
        rows = group.prompt_rows(begin, begin + num_tokens)
        length = num_tokens if len(rows) <= max_rows else rows[max_rows] - begin
        max_rows -= min(len(rows), max_rows)
        if length > 0:
            kept.append((group, length))
    return kept


_NOTHING = DecodeLoad()
_NO_ROWS = np.empty(0, dtype=np.int64)
