"""Steps that last what a cost model says, and compute nothing.

Everything around them is real: commands, block manager, sampling, reports, handoffs. So the pool is real as
well, if tiny: a slot holds its token's id and position. Each row of logits is looked up by its newest token,
that token's position, and what is found in one slot of its context, chosen by the position. A request thus
gets the same tokens wherever and however often it runs, and gets others when its KV is not its own.

Time passes as on a device with one launched step after the one that runs: a step begins when the one before
is over, even while the host still deals with that one's tokens, and the host's part of a step is hidden
behind it as long as it is shorter. After a wait for work, a step begins when the wait ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.kv.kv_pool import BlockLayout, KVPool
from engine.model.attention.step_batch import StepBatch
from scheduling.cost_model import CostModel, StepShape

MAX_LOGIT_ROWS = 512
MAX_TABLE_VALUES = 1 << 22
"""16 MB: with a larger vocabulary there are fewer different rows."""
LOGIT_SPREAD = 10.0
NEVER = -100.0
"""The logit of a token that ends the sequence: its length is for the request to say."""
_MULTIPLIERS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)


def layout(block_size: int) -> BlockLayout:
    """A token's id as its key, its position as its value."""
    return BlockLayout(num_layers=1, block_size=block_size, num_kv_heads=1, head_dim=1, dtype=torch.int32)


def logits_table(vocab_size: int, eos_token_ids: tuple[int, ...]) -> Tensor:
    """[rows, vocab_size] float32, the same in every process."""
    num_rows = max(1, min(MAX_LOGIT_ROWS, MAX_TABLE_VALUES // vocab_size))
    drawn = np.random.default_rng(0).random((num_rows, vocab_size), dtype=np.float32)
    table = torch.from_numpy(drawn * np.float32(LOGIT_SPREAD))
    table[:, list(eos_token_ids)] = NEVER
    return table


class TimedRunner:
    """Implements `engine.execution.launcher.Runner`. `pool` has `layout()` and lies in host memory.

    `clock` and `sleep` are in seconds; a step never ends before its time, and late when `sleep` is.
    """

    def __init__(
        self,
        pool: KVPool,
        cost: CostModel,
        table: Tensor,
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        size = pool.layout.block_size
        self._kv: NDArray[np.int32] = pool.tensor.view(pool.num_blocks, 2, size).numpy()
        self._size = size
        self._cost = cost
        self._table = table
        self._logits = torch.empty(0, table.shape[1])
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()
        """When the device is done with what it has been given."""

    def woke(self) -> None:
        """The loop had nothing to run until now."""
        self._free_at = max(self._free_at, self._clock())

    def forward(self, batch: StepBatch) -> Tensor:
        """Logits [R, vocab], valid until the next step; returns when the step's time is over."""
        asked_at = self._clock()
        over_at = self._free_at + self._cost.predict(shape_of(batch))
        logits = self._compute(batch)
        left = over_at - self._clock()
        if left > 0:
            self._sleep(left)
        # A host that fell behind cannot have launched the next step before it came to this one.
        self._free_at = max(over_at, asked_at)
        return logits

    def _compute(self, batch: StepBatch) -> Tensor:
        tokens, positions = batch.token_ids.numpy(), batch.positions.numpy()
        self._write(tokens, positions, batch.slot_mapping.numpy())
        rows = batch.logit_rows.numpy()
        if rows.size == 0:
            return self._table[:0]
        owners = np.searchsorted(batch.cu_seqlens_q.numpy(), rows, side="right") - 1
        newest = positions[rows]
        seen = _scrambled(newest) % np.maximum(newest, 1).astype(np.uint64)
        blocks = batch.block_tables.numpy()[owners, seen.astype(np.int64) // self._size]
        found = self._kv[blocks, :, seen.astype(np.int64) % self._size]
        keys = _scrambled(tokens[rows], newest, found[:, 0], found[:, 1]) % np.uint64(len(self._table))
        if len(self._logits) < rows.size:
            self._logits = torch.empty(rows.size, self._table.shape[1])
        picked = torch.from_numpy(keys.astype(np.int64))
        return torch.index_select(self._table, 0, picked, out=self._logits[: rows.size])

    def _write(
        self, tokens: NDArray[np.int64], positions: NDArray[np.int64], slots: NDArray[np.int64]
    ) -> None:
        kept = slots >= 0
        if not kept.all():
            tokens, positions, slots = tokens[kept], positions[kept], slots[kept]
        blocks, offsets = slots // self._size, slots % self._size
        self._kv[blocks, 0, offsets] = tokens
        self._kv[blocks, 1, offsets] = positions


def shape_of(batch: StepBatch) -> StepShape:
    """A sequence with one token in the step counts as a decode, a prompt's chunk of that length too."""
    lengths = np.diff(batch.cu_seqlens_q.numpy()).astype(np.int64)
    contexts = batch.context_lens.numpy().astype(np.int64)
    is_chunk = lengths > 1
    chunks, before = lengths[is_chunk], contexts[is_chunk] - lengths[is_chunk]
    return StepShape(
        num_tokens=int(lengths.sum()),
        num_seqs=len(lengths),
        decode_context=int(contexts[~is_chunk].sum()),
        chunk_attention=float((chunks * (before + chunks / 2)).sum()),
        chunk_context=int(before.sum()),
        num_decodes=len(lengths) - len(chunks),
    )


def _scrambled(*columns: NDArray[np.int64] | NDArray[np.int32]) -> NDArray[np.uint64]:
    """[r] numbers that are nothing but functions of the rows' values."""
    mixed = np.zeros(len(columns[0]), dtype=np.uint64)
    for column, multiplier in zip(columns, _MULTIPLIERS, strict=False):
        mixed ^= column.astype(np.uint64)
        mixed *= np.uint64(multiplier)
        mixed ^= mixed >> np.uint64(29)
    return mixed
