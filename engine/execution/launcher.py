"""Launches a step: everything about it that does not take its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.core.batch import Batch, ChunkRow
from engine.core.groups import Groups
from engine.core.memory.block_tables import BlockTables
from engine.core.sequence import Goal, SequenceGroup
from engine.core.sequence import Sequence as Choice
from engine.device.host_copies import upload
from engine.execution.flight import Flight
from engine.model.step_batch import StepBatch
from engine.sampling.prompt_logprobs import ROWS_AT_ONCE, TakenRows
from engine.sampling.sampler import Drawn
from engine.sampling.sampling_table import SamplingTable

Chunks = Sequence[tuple[SequenceGroup, int]]
"""Prompts, and how many of their next tokens a step computes."""
Draw = Callable[[Tensor, SamplingTable, NDArray[np.int64], int], Drawn]


class Runner(Protocol):
    """The model over its KV pool."""

    def forward(self, batch: StepBatch) -> Tensor:
        """Write the step's KV; answer logits [R, vocab] of `batch.logit_rows`, which may be empty."""
        ...


class Launcher:
    """Gives the device its work. `pool` is the runner's KV [num_blocks, ...]."""

    def __init__(
        self,
        runner: Runner,
        pool: Tensor,
        groups: Groups,
        batch: Batch,
        tables: BlockTables,
        draw: Draw,
        *,
        prompt_rows_at_once: int = ROWS_AT_ONCE,
    ) -> None:
        self._runner = runner
        self._pool = pool
        self._groups = groups
        self._batch = batch
        self._tables = tables
        self._draw = draw
        self._prompt_rows_at_once = prompt_rows_at_once

    def launch(self, flight: Flight, num_decodes: int, chunks: Chunks, newest: Tensor | None) -> None:
        """Launch the rows' next tokens (of all, or none) and the chunks; `flight` gets what follows from it.

        `newest` is what the step in flight draws. Raises whatever the model does.
        """
        batch = self._batch
        first_row = batch.num_rows - num_decodes
        rows = [self._chunk_row(group, number) for group, number in chunks]
        step = batch.assemble(num_decodes, rows)
        logits = self._runner.forward(step if newest is None else step.with_newest(newest))
        if any(row.prompt_rows for row in rows):
            logits = self._take_prompt_rows(flight, num_decodes, chunks, rows, logits)
        joining = self._count_chunks(flight, chunks)
        repeats = [1] * num_decodes + [group.num_rows for group in joining]
        for group in joining:
            self._join(flight, group)
        if batch.num_rows > first_row:
            self._draw_tokens(flight, first_row, _repeated(logits, repeats))
        for group in joining:
            self._go_on(flight, group)
        flight.mark.end()

    def start(self, group: SequenceGroup) -> None:
        """The choices have their first tokens, or will when the step in flight is over: each goes on."""
        copies = self._groups.start_choices(group)
        if copies:
            sources, targets = (
                upload(np.array(blocks), self._pool.device) for blocks in zip(*copies, strict=True)
            )
            self._pool[targets] = self._pool[sources]

    def _chunk_row(self, group: SequenceGroup, num_tokens: int) -> ChunkRow:
        begin = group.num_computed_tokens
        end = begin + num_tokens
        self._tables.cover(group, end)
        wants_logits = end == len(group.context) and group.first_tokens is None
        rows = group.prompt_rows(begin, end)
        places = range(rows.start - begin, rows.stop - begin)
        return ChunkRow(group.context[begin:end], begin, group.block_table, wants_logits, places)

    def _take_prompt_rows(
        self, flight: Flight, num_decodes: int, chunks: Chunks, rows: Sequence[ChunkRow], logits: Tensor
    ) -> Tensor:
        """Take the rows of `logits` that are for prompts' own tokens, and return the rows to draw from."""
        drawn, at = list(range(num_decodes)), num_decodes
        for (group, _), row in zip(chunks, rows, strict=True):
            num = len(row.prompt_rows)
            if num:
                first = row.first_position + row.prompt_rows.start
                own, positions = logits[at : at + num], range(first, first + num)
                taken = TakenRows(group, positions, own, rows_at_once=self._prompt_rows_at_once)
                flight.prompt_rows.append(taken)
                group.num_launched_prompt_rows = first + num
            at += num
            if row.wants_logits:
                drawn.append(at)
                at += 1
        return logits[upload(np.array(drawn, dtype=np.int64), logits.device)]

    def _count_chunks(self, flight: Flight, chunks: Chunks) -> list[SequenceGroup]:
        """Answers the groups that get their first tokens, in the order of their logits."""
        for group, num_tokens in chunks:
            num_lost = min(num_tokens, group.num_known_tokens - group.num_computed_tokens)
            flight.num_recomputed += max(0, num_lost)
            group.pending_chunks.append(group.num_computed_tokens)
            group.num_computed_tokens += num_tokens
        return [
            group for group, _ in chunks if group.num_remaining_tokens == 0 and group.first_tokens is None
        ]

    def _join(self, flight: Flight, group: SequenceGroup) -> None:
        if self._groups.finish_prefill(group):
            flight.prefilled.append(group)
        for choice in group.sequences:
            self._batch.join(choice)

    def _draw_tokens(self, flight: Flight, first_row: int, logits: Tensor) -> None:
        """A token for each row from `first_row`; whoever can have no more leaves."""
        batch, rows = self._batch, slice(first_row, self._batch.num_rows)
        flight.first_row, flight.choices = first_row, batch.sequences[rows]
        flight.handles = batch.handles[rows].tolist()
        flight.choice_indexes = batch.choices[rows].tolist()
        flight.token_indexes = batch.num_outputs[rows].tolist()
        flight.positions = batch.positions[rows].copy()
        flight.num_logprobs = batch.sampling.num_logprobs[: batch.num_rows].copy()
        batch.ban_bad_words(first_row)
        flight.drawn = self._draw(logits, batch.sampling, batch.num_outputs[rows], first_row)
        for choice in batch.launched(first_row):
            self._leave(flight, choice)

    def _go_on(self, flight: Flight, group: SequenceGroup) -> None:
        going = [choice for choice in group.sequences if choice.row >= 0]
        if group.goal is Goal.HOLD:
            for choice in going:
                self._leave(flight, choice)
        elif going:
            self.start(group)

    def _leave(self, flight: Flight, choice: Choice) -> None:
        self._batch.leave(choice)
        flight.num_last += 1


def _repeated(logits: Tensor, repeats: Sequence[int]) -> Tensor:
    """Each row of `logits` as often as `repeats` says."""
    if max(repeats) == 1:
        return logits
    return logits[upload(np.repeat(np.arange(len(repeats)), repeats), logits.device)]
