"""Groups the rows of a step by adapter, so that a linear layer computes many adapters at once."""

from __future__ import annotations

from dataclasses import dataclass
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
