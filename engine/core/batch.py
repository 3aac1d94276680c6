"""The running choices as a structure of arrays that is updated in place.

Joining, leaving and growing touch one row; a step touches columns. Rows stay contiguous: the last row takes
the place of one that leaves.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.core.due_times import DueTimes
from engine.core.sequence import Sequence
from engine.device.host_copies import StepUpload
from engine.model.step_batch import StepBatch
from engine.sampling.sampling_table import SamplingTable
from scheduling.step import DecodeLoad


@dataclass(frozen=True, slots=True)
class ChunkRow:
    """A prefill chunk of the step that is being assembled."""

    token_ids: NDArray[np.int64]
    first_position: int
    block_table: Seq[int]
    """Covers the chunk's last token."""
    wants_logits: bool
    """Of its last token."""
    prompt_rows: range = range(0)
    """Places in the chunk whose logits are needed too; never that of the last token."""


class Batch:
    """Columns over the running rows, and the step's tensors made from them."""

    def __init__(
        self, max_rows: int, max_blocks: int, block_size: int, vocab_size: int, device: torch.device
    ) -> None:
        self.max_rows = max_rows
        self.sequences: list[Sequence] = []
        self.handles = np.zeros(max_rows, dtype=np.int64)
        self.choices = np.zeros(max_rows, dtype=np.int64)
        self.token_ids = np.zeros(max_rows, dtype=np.int64)
        """The newest token of each row, whose KV is not written yet; -1 - p where it is the p-th that the
        step in flight draws.
        """
        self.positions = np.zeros(max_rows, dtype=np.int64)
        self.num_outputs = np.zeros(max_rows, dtype=np.int64)
        """Tokens in flight included."""
        self._limits = np.zeros(max_rows, dtype=np.int64)
        self.block_tables = np.zeros((max_rows, max_blocks), dtype=np.int32)
        self.sampling = SamplingTable(max_rows, vocab_size, device)
        self.due_times = DueTimes(max_rows)
        self._columns = (
            self.handles, self.choices, self.token_ids, self.positions, self.num_outputs, self._limits,
            self.block_tables, *self.due_times.columns,
        )  # fmt: skip
        self._block_size = block_size
        self._upload = None if device.type == "cpu" else StepUpload(device)
        self._rows = np.arange(max_rows + 1, dtype=np.int64)
        self._starts = np.arange(max_rows + 1, dtype=np.int32)

    @property
    def num_rows(self) -> int:
        return len(self.sequences)

    @property
    def num_context_tokens(self) -> int:
        """Tokens that the rows' next step attends to."""
        return int(self.positions[: self.num_rows].sum()) + self.num_rows

    def join(self, sequence: Sequence) -> None:
        """Add a row; everything but its newest token is computed, or that too if `launched` adds the next."""
        row = self.num_rows
        assert row < self.max_rows
        group = sequence.group
        prompt, outputs = group.spec.prompt_token_ids, sequence.output_token_ids
        self.sequences.append(sequence)
        sequence.row = row
        self.handles[row] = group.handle
        self.choices[row] = sequence.choice
        self.token_ids[row] = outputs[-1] if outputs else prompt[-1]
        self.positions[row] = len(prompt) + len(outputs) - 1
        self.num_outputs[row] = len(outputs)
        self._limits[row] = group.rules.limit
        self.due_times.set(row, group.spec.tpot_ms, group.spec.itl_ms, sequence.due)
        self.sampling.set(
            row,
            group.spec.sampling,
            sequence.choice,
            prompt_token_ids=prompt,
            output_token_ids=outputs,
            min_tokens=group.rules.min_tokens,
            banned=tuple(group.rules.eos_token_ids | group.rules.stop_token_ids),
        )

    def leave(self, sequence: Sequence) -> None:
        """Remove a row; the last one moves into its place."""
        row, last = sequence.row, self.num_rows - 1
        assert self.sequences[row] is sequence
        sequence.due = self.due_times.get(row)
        moved = self.sequences.pop()
        if row != last:
            self.sequences[row] = moved
            moved.row = row
            for column in self._columns:
                column[row] = column[last]
            self.sampling.move(last, row)
        sequence.row = -1

    def set_blocks(self, sequence: Sequence) -> None:
        """Take over a row's whole block table."""
        table = sequence.block_table
        self.block_tables[sequence.row, : len(table)] = table

    def add_block(self, sequence: Sequence, block: int) -> None:
        """Append a block to the choice and its row."""
        self.block_tables[sequence.row, len(sequence.block_table)] = block
        sequence.block_table.append(block)

    def launched(self, first_row: int) -> list[Sequence]:
        """A step that appends one token to each row from `first_row` is in flight.

        Answers the choices that it gives the last one they may have.
        """
        rows = slice(first_row, self.num_rows)
        self.token_ids[rows] = -1 - self._rows[: self.num_rows - first_row]
        self.positions[rows] += 1
        self.num_outputs[rows] += 1
        full = np.flatnonzero(self.num_outputs[rows] >= self._limits[rows])
        return [self.sequences[first_row + place] for place in full.tolist()]

    def ban_bad_words(self, first_row: int) -> None:
        """Find the tokens that would complete bad words in rows from `first_row`; their output is known."""
        for place in np.flatnonzero(self.sampling.has_bad_words[first_row : self.num_rows]).tolist():
            row = first_row + place
            output = self.sequences[row].output_token_ids
            self.sampling.banned_now[row] = self.sampling.bad_words[row].banned_after(output)

    @property
    def depends_on_newest(self) -> bool:
        """Some row's next token cannot be drawn before the host knows the one before it."""
        return bool(self.sampling.has_bad_words[: self.num_rows].any())

    def landed(self, rows: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        """The tokens of `rows` that were in flight; no later step has appended to these."""
        self.token_ids[rows] = token_ids

    def decode_load(self, at_s: float) -> DecodeLoad:
        """All rows, as a step rule sees them that begins at `at_s`, when what is in flight is over."""
        n, due = self.num_rows, self.due_times
        is_pending = self.token_ids[:n] < 0
        slack_s = due.slack_s(n, at_s, is_pending if is_pending.any() else None)
        return DecodeLoad(n, self.num_context_tokens, slack_s, due.gap_limit_s(n))

    def rows_at_block_start(self) -> list[Sequence]:
        """Choices whose newest token begins a block."""
        begins = np.flatnonzero(self.positions[: self.num_rows] % self._block_size == 0)
        return [self.sequences[row] for row in begins.tolist()]

    def assemble(self, num_decodes: int, chunks: Seq[ChunkRow]) -> StepBatch:
        """The first rows (all of them, or none), one token each, then the chunks."""
        n = num_decodes
        positions = self.positions[:n]
        blocks = positions // self._block_size
        slots = self.block_tables[self._rows[:n], blocks] * np.int64(self._block_size)
        slots += positions - blocks * self._block_size
        longest = int(positions.max()) + 1 if n else 0
        width = -(-longest // self._block_size)
        if chunks:
            return self._assemble_mixed(chunks, slots, longest)
        return self._step_batch(
            token_ids=self.token_ids[:n],
            positions=positions,
            slot_mapping=slots,
            block_tables=self.block_tables[:n, :width],
            context_lens=(positions + 1).astype(np.int32),
            starts=self._starts[: n + 1],
            logit_rows=self._rows[:n],
            max_query_len=1,
            max_context_len=longest,
        )

    def _assemble_mixed(self, chunks: Seq[ChunkRow], slots: NDArray[np.int64], longest: int) -> StepBatch:
        n, size = len(slots), self._block_size
        lengths = np.array([len(chunk.token_ids) for chunk in chunks])
        ends = np.array([chunk.first_position for chunk in chunks]) + lengths
        longest = max(longest, int(ends.max()))
        tables = np.zeros((n + len(chunks), -(-longest // size)), dtype=np.int32)
        tables[:n] = self.block_tables[:n, : tables.shape[1]]
        positions, slot_parts = [self.positions[:n]], [slots]
        for place, (chunk, end) in enumerate(zip(chunks, ends.tolist(), strict=True), n):
            table = chunk.block_table[: tables.shape[1]]
            tables[place, : len(table)] = table
            own = np.arange(chunk.first_position, end)
            positions.append(own)
            slot_parts.append(tables[place, own // size] * np.int64(size) + own % size)
        starts = np.concatenate([self._starts[: n + 1], n + np.cumsum(lengths)]).astype(np.int32)
        wanted: list[int] = []
        for chunk, begin, end in zip(chunks, starts[n:].tolist(), starts[n + 1 :].tolist(), strict=False):
            wanted.extend(begin + place for place in chunk.prompt_rows)
            if chunk.wants_logits:
                wanted.append(end - 1)
        return self._step_batch(
            token_ids=np.concatenate([self.token_ids[:n], *(chunk.token_ids for chunk in chunks)]),
            positions=np.concatenate(positions),
            slot_mapping=np.concatenate(slot_parts),
            block_tables=tables,
            context_lens=np.concatenate([self.positions[:n] + 1, ends]).astype(np.int32),
            starts=starts,
            logit_rows=np.concatenate([self._rows[:n], np.array(wanted, dtype=np.int64)]),
            max_query_len=int(lengths.max()),
            max_context_len=longest,
        )

    def _step_batch(
        self,
        *,
        token_ids: NDArray[np.int64],
        positions: NDArray[np.int64],
        slot_mapping: NDArray[np.int64],
        block_tables: NDArray[np.int32],
        context_lens: NDArray[np.int32],
        starts: NDArray[np.int32],
        logit_rows: NDArray[np.int64],
        max_query_len: int,
        max_context_len: int,
    ) -> StepBatch:
        columns = (token_ids, positions, slot_mapping, block_tables, context_lens, starts, logit_rows)
        if self._upload is None:
            tensors = [torch.from_numpy(np.ascontiguousarray(column)) for column in columns]
        else:
            tensors = self._upload(columns)
        ids, position, slots, tables, lens, cu_seqlens_q, rows = tensors
        return StepBatch(
            ids, position, slots, tables, lens, cu_seqlens_q, rows, max_query_len, max_context_len
        )
