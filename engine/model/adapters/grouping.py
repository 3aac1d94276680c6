"""Groups the rows of a step by adapter, so that a linear layer computes many adapters in one product."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

NO_ADAPTER = -1
"""The slot of rows of the base model."""
MAX_PADDING = 2
"""Adapters share a product if none of them has more than this many times the rows of another."""


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


def group_rows(slots: NDArray[np.int64], device: torch.device) -> tuple[AdapterGroup, ...]:
    """Return the groups for rows whose adapters have these slots [T]; without adapters there are none."""
    (adapted,) = np.nonzero(slots != NO_ADAPTER)
    if not adapted.size:
        return ()
    by_slot = adapted[np.argsort(slots[adapted], kind="stable")]
    found, begins, counts = np.unique(slots[by_slot], return_index=True, return_counts=True)
    groups, order = [], np.argsort(counts, kind="stable")
    while order.size:
        together = counts[order] <= MAX_PADDING * counts[order[0]]
        members = np.sort(order[together])
        groups.append(_group(found[members], begins[members], counts[members], by_slot, device))
        order = order[~together]
    return tuple(groups)


def _group(
    slots: NDArray[np.int64],
    begins: NDArray[np.int64],
    counts: NDArray[np.int64],
    by_slot: NDArray[np.int64],
    device: torch.device,
) -> AdapterGroup:
    places = np.arange(counts.max())
    is_kept = places < counts[:, None]
    rows = by_slot[begins[:, None] + np.where(is_kept, places, 0)]
    kept = None if is_kept.all() else _tensor(np.flatnonzero(is_kept), device)
    first, last = int(slots[0]), int(slots[-1])
    follow = last - first + 1 == len(slots)
    return AdapterGroup(
        slots=slice(first, last + 1) if follow else _tensor(slots, device),
        rows=_tensor(rows, device),
        kept=kept,
        targets=_tensor(rows[is_kept], device),
    )


def _tensor(numbers: NDArray[np.int64], device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(numbers)).to(device, non_blocking=True)
