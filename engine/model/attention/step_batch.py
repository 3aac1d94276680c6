"""The ragged batch of one step, flattened, and which of its rows a layer computes with which adapters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.native.adapters import AdapterBlocks

NO_ADAPTER = -1
"""The slot of rows of the base model."""
MAX_PADDING = 2
"""Adapters share a product if none of them has more than this many times the rows of another."""
BLOCK_ROWS = 8
"""Rows of one adapter that a thread computes before it takes others."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AdapterGroup:
    """Adapters whose rows are computed in one product: G adapters with at most M rows each."""

    slots: slice | Tensor
    """The slots of the G adapters; a slice if they follow each other, so that no weights are copied."""
    rows: Tensor
    """[G, M] int64, the rows of the step; padding repeats an adapter's first row."""
    kept: Tensor | None
    """[K] int64, which of the G * M products are no padding; None: all of them."""
    targets: Tensor
    """[K] int64, the row of the step that each of these belongs to."""


class AdapterRows:
    """The rows of a step that have adapters. What only some layers need is made when it is asked for."""

    def __init__(self, slots: Ints, device: torch.device) -> None:
        """`slots` [T] are those of each row's adapter; one at least has one."""
        self.slots = slots
        (adapted,) = np.nonzero(slots != NO_ADAPTER)
        self._rows = adapted[np.argsort(slots[adapted], kind="stable")]
        self._slots, self._begins, self._counts = np.unique(
            slots[self._rows], return_index=True, return_counts=True
        )
        self._device = device

    @cached_property
    def groups(self) -> tuple[AdapterGroup, ...]:
        """The groups for products of PyTorch's."""
        groups, order = [], np.argsort(self._counts, kind="stable")
        while order.size:
            together = self._counts[order] <= MAX_PADDING * self._counts[order[0]]
            groups.append(self._group(np.sort(order[together])))
            order = order[~together]
        return tuple(groups)

    @cached_property
    def blocks(self) -> AdapterBlocks:
        """The blocks for native ops."""
        ranges = zip(self._slots.tolist(), self._begins.tolist(), self._counts.tolist(), strict=True)
        blocks = [
            (slot, at, min(at + BLOCK_ROWS, begin + count))
            for slot, begin, count in ranges
            for at in range(begin, begin + count, BLOCK_ROWS)
        ]
        return AdapterBlocks(torch.from_numpy(self._rows), torch.tensor(blocks, dtype=torch.int64))

    def _group(self, members: Ints) -> AdapterGroup:
        slots, begins, counts = self._slots[members], self._begins[members], self._counts[members]
        places = np.arange(counts.max())
        is_kept = places < counts[:, None]
        rows = self._rows[begins[:, None] + np.where(is_kept, places, 0)]
        first, last = int(slots[0]), int(slots[-1])
        follow = last - first + 1 == len(slots)
        return AdapterGroup(
            slots=slice(first, last + 1) if follow else self._tensor(slots),
            rows=self._tensor(rows),
            kept=None if is_kept.all() else self._tensor(np.flatnonzero(is_kept)),
            targets=self._tensor(rows[is_kept]),
        )

    def _tensor(self, numbers: Ints) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers)).to(self._device, non_blocking=True)


def adapter_rows(slots: Ints, device: torch.device) -> AdapterRows | None:
    """Return the rows that have adapters, by the slots of all rows [T]; None if none has."""
    return AdapterRows(slots, device) if (slots != NO_ADAPTER).any() else None


def count_decodes(lengths: Sequence[int] | Ints) -> int:
    """Return how many sequences have one token, up to the first that has another number of them."""
    (others,) = np.nonzero(np.asarray(lengths) != 1)
    return int(others[0]) if others.size else len(lengths)


@dataclass(frozen=True, slots=True)
class StepBatch:
    """S sequences with T tokens in total; decodes and prefill chunks mix freely.

    All tensors are on the model's device. Sequence s owns tokens `cu_seqlens_q[s]` to `cu_seqlens_q[s + 1]`.
    """

    token_ids: torch.Tensor
    """[T] int64"""
    positions: torch.Tensor
    """[T] int64"""
    slot_mapping: torch.Tensor
    """[T] int64, block * block_size + offset; -1 is not stored"""
    block_tables: torch.Tensor
    """[S, max_blocks] int32; padding is never read"""
    context_lens: torch.Tensor
    """[S] int32, tokens in the context with this step's included"""
    cu_seqlens_q: torch.Tensor
    """[S + 1] int32"""
    logit_rows: torch.Tensor
    """[R] int64, indexes into the T tokens whose logits are wanted, ascending"""
    num_decodes: int
    """Leading sequences that have one token each"""
    max_context_len: int
    in_flight: torch.Tensor | None = None
    """[T] bool; where True, `token_ids` has the token's place among those that the previous step draws."""
    adapters: AdapterRows | None = None
    """The tokens that have an adapter; None if none has."""

    @classmethod
    def of_chunks(
        cls,
        chunks: Sequence[tuple[int, int]],
        block_tables: torch.Tensor,
        block_size: int,
        token_ids: Callable[[torch.Tensor], torch.Tensor],
        device: torch.device,
    ) -> StepBatch:
        """Return the batch of one chunk (context before it, its tokens) for each row of `block_tables`.

        `token_ids` gives the tokens at positions [T]. Logits are wanted of each chunk's last token.
        """
        positions = [torch.arange(before, before + tokens) for before, tokens in chunks]
        slots = [
            table[own // block_size] * block_size + own % block_size
            for table, own in zip(block_tables, positions, strict=True)
        ]
        ends = torch.tensor([0, *(tokens for _, tokens in chunks)]).cumsum(0)
        position = torch.cat(positions)
        return cls(
            token_ids=token_ids(position).to(device),
            positions=position.to(device),
            slot_mapping=torch.cat(slots).to(device),
            block_tables=block_tables.to(device, torch.int32),
            context_lens=torch.tensor([sum(chunk) for chunk in chunks]).to(device, torch.int32),
            cu_seqlens_q=ends.to(device, torch.int32),
            logit_rows=(ends[1:] - 1).to(device),
            num_decodes=count_decodes([tokens for _, tokens in chunks]),
            max_context_len=max(map(sum, chunks)),
        )

    def on(self, device: torch.device) -> StepBatch:
        """Return the batch, all of whose tokens are known, with its tensors on a device."""
        if self.token_ids.device == device:
            return self
        adapters = self.adapters
        return StepBatch(
            token_ids=self.token_ids.to(device),
            positions=self.positions.to(device),
            slot_mapping=self.slot_mapping.to(device),
            block_tables=self.block_tables.to(device),
            context_lens=self.context_lens.to(device),
            cu_seqlens_q=self.cu_seqlens_q.to(device),
            logit_rows=self.logit_rows.to(device),
            num_decodes=self.num_decodes,
            max_context_len=self.max_context_len,
            adapters=None if adapters is None else adapter_rows(adapters.slots, device),
        )

    def without_logits(self) -> StepBatch:
        """Return the batch with logits of none of its tokens."""
        return replace(self, logit_rows=self.logit_rows[:0])

    def with_newest(self, newest: torch.Tensor) -> StepBatch:
        """Return the batch with the tokens that are in flight, on the device.

        `newest` [rows] int64 are the tokens that the previous step draws, behind which this one is launched.
        """
        assert self.in_flight is not None
        places = torch.where(self.in_flight, self.token_ids, 0)
        return replace(self, token_ids=torch.where(self.in_flight, newest[places], self.token_ids))
