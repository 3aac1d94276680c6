"""Steps of decodes alone, recorded for a few batch sizes and replayed with one call each.

A decode step is hundreds of launches of a few microseconds each, which the host cannot issue as fast as a GPU
runs them. Recorded as a CUDA graph they cost one launch. A graph fixes addresses and sizes, not values. So
the inputs are in fixed tensors that each step fills anew, and a step runs in the smallest recorded size that
holds it. The last rows are then idle: token 0 at position 0, stored nowhere, attending to nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from engine.model.attention.step_batch import StepBatch

Run = Callable[[], Tensor]
Record = Callable[[Run], Run]
"""Records work over fixed tensors; returns a function that replays it, whose result the next replay
overwrites."""
OnRecorded = Callable[[int, int], None]
"""Called with the number of sizes recorded so far, and of all."""


def batch_sizes(max_num_seqs: int) -> list[int]:
    """Return the sizes to record, ascending; the last is `max_num_seqs`.

    Each size costs start-up time, and memory for its logits. Products of up to 16 rows take the same time, so
    powers of two suffice there. Beyond, at most 15 rows of a step are idle, and 31 above 128 rows: up to some
    200 rows (H200, 16 bits) a product is bound by reading its weights, and idle rows cost next to nothing.
    """
    sizes = [1, 2, 4, 8, *range(16, 128, 16), *range(128, max_num_seqs, 32)]
    return [*(size for size in sizes if size < max_num_seqs), max_num_seqs]


class DecodeGraphs:
    """Replays decode-only steps of up to `max_num_seqs` rows, tables of up to `max_blocks` blocks.

    `forward` is recorded: it must do the same work whatever values the tensors of its batch have. The largest
    size is recorded first, so the others can reuse its memory.
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
        """Number of rows of the inputs that are not idle."""
        self._replays: dict[int, Run] = {}
        on_recorded(0, len(self._sizes))
        for size in reversed(self._sizes):
            self._replays[size] = record(partial(forward, first_rows(self._inputs, size)))
            on_recorded(len(self._replays), len(self._sizes))

    def holds(self, batch: StepBatch) -> bool:
        """Return whether every sequence has one token with wanted logits, and a recorded size fits."""
        most_rows, most_blocks = self._inputs.block_tables.shape
        num_rows, num_blocks = batch.block_tables.shape
        is_decode = batch.num_decodes == num_rows == len(batch.logit_rows)
        return is_decode and 0 < num_rows <= most_rows and num_blocks <= most_blocks

    def forward(self, batch: StepBatch) -> Tensor:
        """Return logits [R, vocab_size] of a step that `holds`; they are valid until the next step."""
        num_rows = len(batch.token_ids)
        self._fill(batch)
        size = self._sizes[bisect_left(self._sizes, num_rows)]
        return self._replays[size]()[:num_rows]

    def _fill(self, batch: StepBatch) -> None:
        """Put a step's decodes into the first rows; make rows filled behind them idle again.

        Idle rows are all alike, so in a mixture of experts they choose the same few experts. Their block
        tables are never read, nor is a table beyond its row's own blocks.
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
    """Return a batch of decodes that read and write nothing."""
    indexes = torch.arange(num_rows + 1, device=device)
    return StepBatch(
        token_ids=torch.zeros(num_rows, dtype=torch.int64, device=device),
        positions=torch.zeros(num_rows, dtype=torch.int64, device=device),
        slot_mapping=torch.full((num_rows,), -1, dtype=torch.int64, device=device),
        block_tables=torch.zeros((num_rows, max_blocks), dtype=torch.int32, device=device),
        context_lens=torch.zeros(num_rows, dtype=torch.int32, device=device),
        cu_seqlens_q=indexes.to(torch.int32),
        logit_rows=indexes[:num_rows],
        num_decodes=num_rows,
        max_context_len=max_context,
    )


def first_rows(batch: StepBatch, num_rows: int) -> StepBatch:
    """Return the first decodes of a batch of decodes, in the same memory."""
    return replace(
        batch,
        token_ids=batch.token_ids[:num_rows],
        positions=batch.positions[:num_rows],
        slot_mapping=batch.slot_mapping[:num_rows],
        block_tables=batch.block_tables[:num_rows],
        context_lens=batch.context_lens[:num_rows],
        cu_seqlens_q=batch.cu_seqlens_q[: num_rows + 1],
        logit_rows=batch.logit_rows[:num_rows],
        num_decodes=num_rows,
    )


class CudaGraphs:
    """Implements `Record` on a GPU.

    The work must not read from the device on the host, nor do anything that depends on values. All graphs
    share one pool of memory, since they run one after another: a result is valid until the next replay of any
    graph.
    """

    def __init__(self, device: torch.device) -> None:
        cuda: Any = torch.cuda
        self._stream = cuda.Stream(device)
        self._pool = cuda.graph_pool_handle()

    def __call__(self, run: Run) -> Run:
        """Run `run` once, which compiles its kernels and makes its libraries' workspaces; then record it.

        The function that is returned replays it in the stream that is current at that time.
        """
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            run()
        torch.cuda.current_stream().wait_stream(self._stream)
        cuda: Any = torch.cuda
        graph = cuda.CUDAGraph()
        # Other threads of the process may use the device meanwhile, without any effect on this capture.
        mode = "thread_local"
        with cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode=mode):
            output = run()

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay
