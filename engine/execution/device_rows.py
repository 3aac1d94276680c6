"""Columns that a model needs of each running row, and the step's tensors made from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.core.batch import Batch
from engine.core.sequence import Choice
from engine.device.host_copies import StepUpload
from engine.model.step_batch import StepBatch
from engine.sampling.sampling_table import SamplingTable


@dataclass(frozen=True, slots=True)
class ChunkRow:
    """A prefill chunk of the step that is being assembled."""

    token_ids: NDArray[np.int64]
    first_position: int
    block_table: Sequence[int]
    """Covers the chunk's last token."""
    wants_logits: bool
    """The logits of its last token are needed."""
    prompt_rows: range = range(0)
    """Places in the chunk whose logits are needed too; never that of the last token."""


class DeviceRows:
    """Implements `engine.core.batch.RowTable`: columns that follow the rows of a batch."""

    def __init__(self, max_rows: int, max_blocks: int, vocab_size: int, device: torch.device) -> None:
        self.handles = np.zeros(max_rows, dtype=np.int64)
        self.choices = np.zeros(max_rows, dtype=np.int64)
        self.token_ids = np.zeros(max_rows, dtype=np.int64)
        """The newest token of each row, whose KV is not written yet; -1 - p where it is the p-th that the
        step in flight draws.
        """
        self.block_tables = np.zeros((max_rows, max_blocks), dtype=np.int32)
        self.sampling = SamplingTable(max_rows, vocab_size, device)
        self._columns = (self.handles, self.choices, self.token_ids, self.block_tables)
        self._places = np.arange(max_rows, dtype=np.int64)

    def join(self, choice: Choice) -> None:
        row, group = choice.row, choice.group
        prompt, outputs = group.spec.prompt_token_ids, choice.output_token_ids
        self.handles[row] = group.handle
        self.choices[row] = choice.index
        self.token_ids[row] = outputs[-1] if outputs else prompt[-1]
        self.sampling.set(
            row,
            group.spec.sampling,
            choice.index,
            prompt_token_ids=prompt,
            output_token_ids=outputs,
            min_tokens=group.rules.min_tokens,
            banned=tuple(group.rules.eos_token_ids | group.rules.stop_token_ids),
        )

    def leave(self, choice: Choice, last: int) -> None:
        row = choice.row
        if row != last:
            for column in self._columns:
                column[row] = column[last]
            self.sampling.move(last, row)

    def set_blocks(self, choice: Choice) -> None:
        table = choice.block_table
        self.block_tables[choice.row, : len(table)] = table

    def add_block(self, choice: Choice) -> None:
        table = choice.block_table
        self.block_tables[choice.row, len(table) - 1] = table[-1]

    def put_in_flight(self, rows: slice) -> None:
        """The newest tokens of `rows` are those that a launched step draws."""
        self.token_ids[rows] = -1 - self._places[: rows.stop - rows.start]

    def land(self, rows: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        """Set the tokens of `rows` that were in flight; no later step has appended to these."""
        self.token_ids[rows] = token_ids


class StepAssembler:
    """Makes the tensors of a step from a batch, its rows and some chunks."""

    def __init__(self, batch: Batch, rows: DeviceRows, block_size: int, device: torch.device) -> None:
        self._batch = batch
        self._table = rows
        self._block_size = block_size
        self._upload = None if device.type == "cpu" else StepUpload(device)
        self._rows = np.arange(batch.max_rows + 1, dtype=np.int64)
        self._starts = np.arange(batch.max_rows + 1, dtype=np.int32)

    def ban_bad_words(self, first_row: int) -> None:
        """Find the tokens that would complete bad words in rows from `first_row`; their output is known."""
        sampling = self._table.sampling
        for place in np.flatnonzero(sampling.has_bad_words[first_row : self._batch.num_rows]).tolist():
            row = first_row + place
            output = self._batch.choices[row].output_token_ids
            sampling.banned_now[row] = sampling.bad_words[row].banned_after(output)

    @property
    def depends_on_newest(self) -> bool:
        """True if some row's next token cannot be drawn before the host knows the one before it."""
        return bool(self._table.sampling.has_bad_words[: self._batch.num_rows].any())

    def assemble(self, num_decodes: int, chunks: Sequence[ChunkRow]) -> StepBatch:
        """Return the step of the first rows (all of them, or none), one token each, then the chunks."""
        n = num_decodes
        positions = self._batch.positions[:n]
        blocks = positions // self._block_size
        slots = self._table.block_tables[self._rows[:n], blocks] * np.int64(self._block_size)
        slots += positions - blocks * self._block_size
        longest = int(positions.max()) + 1 if n else 0
        width = -(-longest // self._block_size)
        if chunks:
            return self._assemble_mixed(chunks, slots, longest)
        return self._step_batch(
            token_ids=self._table.token_ids[:n],
            positions=positions,
            slot_mapping=slots,
            block_tables=self._table.block_tables[:n, :width],
            context_lens=(positions + 1).astype(np.int32),
            starts=self._starts[: n + 1],
            logit_rows=self._rows[:n],
            max_query_len=1,
            max_context_len=longest,
        )

    def _assemble_mixed(
        self, chunks: Sequence[ChunkRow], slots: NDArray[np.int64], longest: int
    ) -> StepBatch:
        n, size = len(slots), self._block_size
        lengths = np.array([len(chunk.token_ids) for chunk in chunks])
        ends = np.array([chunk.first_position for chunk in chunks]) + lengths
        longest = max(longest, int(ends.max()))
        tables = np.zeros((n + len(chunks), -(-longest // size)), dtype=np.int32)
        tables[:n] = self._table.block_tables[:n, : tables.shape[1]]
        positions, slot_parts = [self._batch.positions[:n]], [slots]
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
            token_ids=np.concatenate([self._table.token_ids[:n], *(chunk.token_ids for chunk in chunks)]),
            positions=np.concatenate(positions),
            slot_mapping=np.concatenate(slot_parts),
            block_tables=tables,
            context_lens=np.concatenate([self._batch.positions[:n] + 1, ends]).astype(np.int32),
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
