"""A smaller model that drafts: it computes the rows' tokens over its own pool, and draws what may follow.

The pool has as many blocks as the model's, and a row's KV is in the blocks of its block table in both. So
nothing has to be allocated for it. KV that came from another worker, host memory or a disk is only in the
model's pool: the draft model computes it again before it drafts. `DraftTable` knows how many leading tokens
of each row it has computed, and `ComputedBlocks` which cached blocks a new row need not compute. Several rows
may write to a block that they share: its content is the same for all of them.

Drafts are drawn with the parameters and the noise of the places that they are for. So where the draft model's
probabilities are close to the model's, random draws mostly agree as well. They hardly do where thousands of
tokens are about as likely as each other: then a small difference of the sums that are compared with the noise
leads to another token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.core.batch import Batch
from engine.device import StepUpload, mark_steps
from engine.execution.device_rows import DeviceRows
from engine.execution.stages import Runner
from engine.model.attention.step_batch import StepBatch, count_decodes
from engine.sampling.sampler import Draw
from engine.speculation.computed_blocks import ComputedBlocks
from scheduling.cost_model import CostModel, StepShape
from scheduling.draft_model import FollowedCost


@dataclass(frozen=True, slots=True)
class DraftEngine:
    """A draft model that is loaded and measured."""

    runner: Runner
    """It runs over a pool with as many blocks as the model's, of the same number of tokens."""
    cost: CostModel
    """The costs of its steps, UNKNOWN_COST if too few were measured."""
    max_context: int
    """It drafts no token behind that many."""


@dataclass(frozen=True, slots=True)
class _Work:
    """Tokens of one row that a step of the draft model computes, from a place of its sequence."""

    row: int
    begin: int
    token_ids: list[int]


class DraftModel:
    """Drafts for rows of a batch that are in no step in flight: their newest tokens are known."""

    def __init__(
        self,
        engine: DraftEngine,
        batch: Batch,
        rows: DeviceRows,
        draw: Draw,
        clock: Callable[[], float],
        blocks: ComputedBlocks,
        *,
        block_size: int,
        device: torch.device,
    ) -> None:
        self._runner = engine.runner
        self.max_context = engine.max_context
        self.cost = FollowedCost(engine.cost)
        self._batch = batch
        self._rows = rows
        self._draw = draw
        self._clock = clock
        self._blocks = blocks
        self._block_size = block_size
        self._device = device
        self._upload = None if device.type == "cpu" else StepUpload(device)

    def num_computed(self, row: int) -> int:
        """Return how many leading tokens of a row have their KV in the draft model's pool."""
        drafts = self._rows.drafts[row]
        if not drafts.num_computed:
            table = self._batch.choices[row].block_table
            drafts.num_kept_blocks = self._blocks.num_leading(table)
            drafts.num_computed = drafts.num_kept_blocks * self._block_size
        return drafts.num_computed

    def catch_up(self, row: int, num_tokens: int, forced: Sequence[int]) -> None:
        """Compute the next tokens of a row, up to those that are `forced` behind its newest one."""
        work = self._lacking(row, forced, num_tokens)
        self._run([work], None)
        self._keep(row, work.begin + num_tokens)

    def draft(self, lengths: Mapping[int, int], forced: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
        """Return a draft of so many tokens for each row, behind its newest and its `forced` tokens."""
        rows = sorted(lengths, key=lambda row: -lengths[row])  # those that are in all rounds come first
        # They have the rows of the sampling table that drafted tokens have when they are verified.
        self._rows.sampling.copy_draws(rows, self._batch.max_rows)
        ends, indexes = self._batch.positions[rows] + 1, self._batch.num_outputs[rows]
        work = [self._lacking(row, forced.get(row, ())) for row in rows]
        drafts: dict[int, list[int]] = {row: [] for row in rows}
        for place in range(lengths[rows[0]]):
            going = [row for row in rows if lengths[row] > place]
            if place:
                starts = (ends[: len(going)] + place - 1).tolist()
                work = [_Work(row, start, drafts[row][-1:]) for row, start in zip(going, starts, strict=True)]
            for row, token_id in zip(going, self._run(work, indexes[: len(going)] + place), strict=True):
                drafts[row].append(token_id)
        for row, end in zip(rows, ends.tolist(), strict=True):
            self._keep(row, end)
        return drafts

    def _keep(self, row: int, num_computed: int) -> None:
        """Take in that so many leading tokens of a row are computed; others may find its cached blocks."""
        drafts, choice = self._rows.drafts[row], self._batch.choices[row]
        drafts.num_computed, first = num_computed, drafts.num_kept_blocks
        num_full = min(num_computed // self._block_size, choice.num_registered_blocks)
        drafts.num_kept_blocks = max(first, num_full)
        self._blocks.finish(choice.block_table[first:num_full])

    def _lacking(self, row: int, forced: Sequence[int], most: int | None = None) -> _Work:
        """Return the tokens of a row that are not computed yet, or the first `most` of them."""
        begin, end = self._rows.drafts[row].num_computed, int(self._batch.positions[row]) + 1
        token_ids = [*self._batch.choices[row].tokens(begin, end), *forced]
        assert len(token_ids) == end - begin > 0, f"{len(token_ids)} tokens of places {begin} to {end}"
        return _Work(row, begin, token_ids[:most])

    def _run(self, work: Sequence[_Work], indexes: NDArray[np.int64] | None) -> list[int]:
        """Compute tokens, and return one drawn behind each row's last; none without `indexes`.

        These are the places of the drawn tokens in the rows' outputs.
        """
        began_s = self._clock()
        logits = self._runner.forward(self._assemble(work, with_logits=indexes is not None))
        drawn: list[int] = []
        if indexes is None:
            mark_steps(self._device).synchronize()
        else:
            first = self._batch.max_rows
            rows = slice(first, first + len(indexes))
            sampled = self._draw(logits, self._rows.sampling, indexes, rows).wait()
            drawn = sampled.token_ids.tolist()
        self.cost.observe(_shape(work), self._clock() - began_s)
        return drawn

    def _assemble(self, work: Sequence[_Work], *, with_logits: bool) -> StepBatch:
        size = self._block_size
        begins = np.array([piece.begin for piece in work], dtype=np.int64)
        lengths = np.array([len(piece.token_ids) for piece in work], dtype=np.int64)
        ends, starts = begins + lengths, np.concatenate([[0], np.cumsum(lengths)])
        longest = int(ends.max())
        tables = self._rows.block_tables[[piece.row for piece in work], : -(-longest // size)]
        owners = np.repeat(np.arange(len(work)), lengths)
        positions = np.arange(starts[-1]) + (ends - starts[1:])[owners]
        blocks = tables[owners, positions // size]
        slots = blocks * np.int64(size) + positions % size
        self._blocks.begin(blocks.tolist())
        columns: dict[str, NDArray[Any]] = {
            "token_ids": np.array(
                [token_id for piece in work for token_id in piece.token_ids], dtype=np.int64
            ),
            "positions": positions,
            "slot_mapping": _once(slots),
            "block_tables": tables,
            "context_lens": ends.astype(np.int32),
            "cu_seqlens_q": starts.astype(np.int32),
            "logit_rows": starts[1:] - 1 if with_logits else np.empty(0, dtype=np.int64),
        }
        named = dict(zip(columns, self._uploaded(list(columns.values())), strict=True))
        return StepBatch(**named, num_decodes=count_decodes(lengths), max_context_len=longest, adapters=None)

    def _uploaded(self, columns: Sequence[NDArray[Any]]) -> list[Tensor]:
        if self._upload is not None:
            return self._upload(columns)
        return [torch.from_numpy(np.ascontiguousarray(column)) for column in columns]


def _once(slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the slots with -1, which stores nothing, for all but the first token of each."""
    _, firsts = np.unique(slots, return_index=True)
    if len(firsts) == len(slots):
        return slots
    once = np.full_like(slots, -1)
    once[firsts] = slots[firsts]
    return once


def _shape(work: Sequence[_Work]) -> StepShape:
    decodes = [piece.begin + 1 for piece in work if len(piece.token_ids) == 1]
    chunks = [(piece.begin, len(piece.token_ids)) for piece in work if len(piece.token_ids) > 1]
    return StepShape.of(len(decodes), sum(decodes), chunks)
