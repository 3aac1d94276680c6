"""Columns that a model needs of each running row, and the step's tensors made from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.core.batch import Batch
from engine.core.sequence import Choice
from engine.core.step import ChunkWork
from engine.device.host_copies import StepUpload
from engine.model.step_batch import StepBatch
from engine.sampling.sampling_table import SamplingTable
from output_text.grammar import Grammars


class DeviceRows:
    """Implements `engine.core.batch.RowTable`: columns that follow the rows of a batch."""

    def __init__(
        self,
        max_rows: int,
        max_blocks: int,
        vocab_size: int,
        device: torch.device,
        grammars: Grammars | None = None,
    ) -> None:
        self.token_ids = np.zeros(max_rows, dtype=np.int64)
        """The newest token of each row, whose KV is not written yet, or where it is `in_flight`: its place
        among the tokens that the step in flight draws.
        """
        self.in_flight = np.zeros(max_rows, dtype=np.bool_)
        self.block_tables = np.zeros((max_rows, max_blocks), dtype=np.int32)
        self.sampling = SamplingTable(max_rows, vocab_size, device, grammars)
        self._columns = (self.token_ids, self.in_flight, self.block_tables)
        self._places = np.arange(max_rows, dtype=np.int64)

    def join(self, choice: Choice) -> None:
        row, group = choice.row, choice.group
        prompt, outputs = group.spec.prompt_token_ids, choice.output_token_ids
        self.token_ids[row] = outputs[-1] if outputs else prompt[-1]
        self.in_flight[row] = False
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
        self.token_ids[rows] = self._places[: rows.stop - rows.start]
        self.in_flight[rows] = True

    def land(self, rows: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        """Set the tokens of `rows` that were in flight; no later step has appended to these."""
        self.token_ids[rows], self.in_flight[rows] = token_ids, False


class StepAssembler:
    """Makes the tensors of a step from a batch, its rows and some chunks."""

    def __init__(self, batch: Batch, rows: DeviceRows, block_size: int, device: torch.device) -> None:
        self._batch = batch
        self._table = rows
        self._block_size = block_size
        self._upload = None if device.type == "cpu" else StepUpload(device)
        self._rows = np.arange(batch.max_rows + 1, dtype=np.int64)
        self._starts = np.arange(batch.max_rows + 1, dtype=np.int32)

    def restrict_draws(self, first_row: int) -> dict[int, str]:
        """Find the tokens that bad words and grammars forbid in rows from `first_row`.

        Return why no token may follow, by place among these rows, for those that cannot go on. The output of
        the rows is known. On a GPU the step's forward pass runs meanwhile.
        """
        sampling = self._table.sampling
        for place in np.flatnonzero(sampling.has_bad_words[first_row : self._batch.num_rows]).tolist():
            row = first_row + place
            output = self._batch.choices[row].output_token_ids
            sampling.banned_now[row] = sampling.bad_words[row].banned_after(output)
        stuck = {}
        for place in np.flatnonzero(sampling.has_grammar[first_row : self._batch.num_rows]).tolist():
            row = first_row + place
            why = sampling.follow(row, self._batch.choices[row].output_token_ids)
            if why:
                stuck[place] = why
        return stuck

    @property
    def depends_on_newest(self) -> bool:
        """True if some row's next token cannot be drawn before the host knows the one before it."""
        sampling, num_rows = self._table.sampling, self._batch.num_rows
        return bool(sampling.has_bad_words[:num_rows].any() or sampling.has_grammar[:num_rows].any())

    def assemble(self, num_decodes: int, chunks: Sequence[ChunkWork]) -> StepBatch:
        """Return the step of the first rows (all of them, or none), one token each, then the chunks.

        Each chunk's block table covers its last token.
        """
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
            max_query_len=1,
            max_context_len=longest,
            token_ids=self._table.token_ids[:n],
            positions=positions,
            slot_mapping=slots,
            block_tables=self._table.block_tables[:n, :width],
            context_lens=(positions + 1).astype(np.int32),
            cu_seqlens_q=self._starts[: n + 1],
            logit_rows=self._rows[:n],
            in_flight=self._table.in_flight[:n],
        )

    def _assemble_mixed(
        self, chunks: Sequence[ChunkWork], slots: NDArray[np.int64], longest: int
    ) -> StepBatch:
        n, size = len(slots), self._block_size
        ends = np.array([chunk.end for chunk in chunks])
        lengths = ends - [chunk.begin for chunk in chunks]
        longest = max(longest, int(ends.max()))
        tables = np.zeros((n + len(chunks), -(-longest // size)), dtype=np.int32)
        tables[:n] = self._table.block_tables[:n, : tables.shape[1]]
        token_parts, positions, slot_parts = [self._table.token_ids[:n]], [self._batch.positions[:n]], [slots]
        in_flight = np.zeros(n + int(lengths.sum()), dtype=np.bool_)
        in_flight[:n] = self._table.in_flight[:n]
        starts = np.concatenate([self._starts[: n + 1], n + np.cumsum(lengths)]).astype(np.int32)
        wanted: list[int] = []
        for place, (chunk, start) in enumerate(zip(chunks, starts[n:-1].tolist(), strict=True), n):
            table = chunk.group.block_table[: tables.shape[1]]
            tables[place, : len(table)] = table
            own = np.arange(chunk.begin, chunk.end)
            token_parts.append(chunk.group.context[chunk.begin : chunk.end])
            positions.append(own)
            slot_parts.append(tables[place, own // size] * np.int64(size) + own % size)
            wanted.extend(start + position - chunk.begin for position in chunk.prompt_rows)
            if chunk.wants_logits:
                wanted.append(start + chunk.end - chunk.begin - 1)
        return self._step_batch(
            max_query_len=int(lengths.max()),
            max_context_len=longest,
            token_ids=np.concatenate(token_parts),
            positions=np.concatenate(positions),
            slot_mapping=np.concatenate(slot_parts),
            block_tables=tables,
            context_lens=np.concatenate([self._batch.positions[:n] + 1, ends]).astype(np.int32),
            cu_seqlens_q=starts,
            logit_rows=np.concatenate([self._rows[:n], np.array(wanted, dtype=np.int64)]),
            in_flight=in_flight,
        )

    def _step_batch(self, *, max_query_len: int, max_context_len: int, **columns: NDArray[Any]) -> StepBatch:
        """Return the step whose tensors have these numbers."""
        if self._upload is None:
            tensors = [torch.from_numpy(np.ascontiguousarray(column)) for column in columns.values()]
        else:
            tensors = self._upload(list(columns.values()))
        named = dict(zip(columns, tensors, strict=True))
        return StepBatch(**named, max_query_len=max_query_len, max_context_len=max_context_len)
