"""Steps of decodes alone, recorded for a few batch sizes and replayed with one call each.

A decode step is hundreds of launches of a few microseconds each, which the host cannot issue as fast as a GPU
runs them. Recorded as a graph they cost one. A graph knows addresses and sizes, not values: so the inputs lie
in fixed tensors that each step fills anew, and a step runs in the smallest recorded size that holds it, its
last rows idle: a token 0 at position 0 that is stored nowhere and attends to nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from engine.model.step_batch import StepBatch

Run = Callable[[], Tensor]
Record = Callable[[Run], Run]
"""From work over fixed tensors to what repeats it; answers its result, valid until anything is repeated."""
OnRecorded = Callable[[int, int], None]
"""Told how many sizes are recorded, of how many."""


def batch_sizes(max_num_seqs: int) -> list[int]:
    """The sizes that are recorded, ascending; the last is `max_num_seqs`.

    Each costs start-up time, and memory for its logits. Products of up to 16 rows take the same time, so
    there the powers of two do. Beyond, at most 15 rows of a step are idle, of larger ones 31: up to some 200
    rows (H200, 16 bits) a product still waits for its weights, and idle ones are next to free.
    """
    sizes = [1, 2, 4, 8, *range(16, 128, 16), *range(128, max_num_seqs, 32)]
    return [*(size for size in sizes if size < max_num_seqs), max_num_seqs]


class DecodeGraphs:
    """Replays decode-only steps of up to `max_num_seqs` rows, tables of up to `max_blocks` blocks.

    `forward` is what is recorded: it must do the same work whatever its batch's tensors hold. The largest is
    recorded first: those after it find its memory free.
    """

    def __init__(
        self,
        forward: Callable[[StepBatch], Tensor],
        record: Record,
        on_recorded: OnRecorded,
        *,
        max_num_seqs: int,
        max_blocks: int,
        max_context: int,
        device: torch.device,
    ) -> None:
        self._sizes = batch_sizes(max_num_seqs)
        self._inputs = idle_batch(max_num_seqs, max_blocks, max_context, device)
        self._num_filled = 0
        """Rows of the inputs that are not idle."""
        self._replays: dict[int, Run] = {}
        on_recorded(0, len(self._sizes))
        for size in reversed(self._sizes):
            self._replays[size] = record(partial(forward, first_rows(self._inputs, size)))
            on_recorded(len(self._replays), len(self._sizes))

    def holds(self, batch: StepBatch) -> bool:
        """Whether each sequence has one token, whose logits are wanted, and the sizes are recorded ones."""
        most_rows, most_blocks = self._inputs.block_tables.shape
        num_rows, num_blocks = batch.block_tables.shape
        is_decode = batch.max_query_len == 1 and len(batch.logit_rows) == num_rows
        return is_decode and 0 < num_rows <= most_rows and num_blocks <= most_blocks

    def forward(self, batch: StepBatch) -> Tensor:
        """Logits [R, vocab_size] of a step that `holds`, valid until the next one is queued."""
        num_rows = len(batch.token_ids)
        self._fill(batch)
        size = self._sizes[bisect_left(self._sizes, num_rows)]
        return self._replays[size]()[:num_rows]

    def _fill(self, batch: StepBatch) -> None:
        """Put a step's decodes into the first rows; those that were filled behind them become idle again.

        Idle rows are all alike, so that in a mixture of experts they ask for the same few. What their tables
        hold is never read, nor what is behind a row's own blocks.
        """
        inputs = self._inputs
        num_rows, num_blocks = batch.block_tables.shape
        for column, values, idle in (
            (inputs.token_ids, batch.token_ids, 0),
            (inputs.positions, batch.positions, 0),
            (inputs.slot_mapping, batch.slot_mapping, -1),
            (inputs.context_lens, batch.context_lens, 0),
        ):
            column[:num_rows].copy_(values)
            if num_rows < self._num_filled:
                column[num_rows : self._num_filled].fill_(idle)
        inputs.block_tables[:num_rows, :num_blocks].copy_(batch.block_tables)
        self._num_filled = num_rows


def idle_batch(num_rows: int, max_blocks: int, max_context: int, device: torch.device) -> StepBatch:
    """Decodes of which none has anything to read or to write."""
    indexes = torch.arange(num_rows + 1, device=device)
    return StepBatch(
        token_ids=torch.zeros(num_rows, dtype=torch.int64, device=device),
        positions=torch.zeros(num_rows, dtype=torch.int64, device=device),
        slot_mapping=torch.full((num_rows,), -1, dtype=torch.int64, device=device),
        block_tables=torch.zeros((num_rows, max_blocks), dtype=torch.int32, device=device),
        context_lens=torch.zeros(num_rows, dtype=torch.int32, device=device),
        cu_seqlens_q=indexes.to(torch.int32),
        logit_rows=indexes[:num_rows],
        max_query_len=1,
        max_context_len=max_context,
    )


def first_rows(batch: StepBatch, num_rows: int) -> StepBatch:
    """The first decodes of a batch of decodes, in the same memory."""
    return StepBatch(
        token_ids=batch.token_ids[:num_rows],
        positions=batch.positions[:num_rows],
        slot_mapping=batch.slot_mapping[:num_rows],
        block_tables=batch.block_tables[:num_rows],
        context_lens=batch.context_lens[:num_rows],
        cu_seqlens_q=batch.cu_seqlens_q[: num_rows + 1],
        logit_rows=batch.logit_rows[:num_rows],
        max_query_len=1,
        max_context_len=batch.max_context_len,
    )
