"""Rows are grouped by adapter: each adapted row belongs to one group, under its own slot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.model.attention.step_batch import MAX_PADDING, NO_ADAPTER, AdapterGroup, adapter_rows

CPU = torch.device("cpu")


def group_rows(slots: Sequence[int]) -> tuple[AdapterGroup, ...]:
    rows = adapter_rows(np.array(slots, dtype=np.int64), CPU)
    return () if rows is None else rows.groups


def slots_of(group: AdapterGroup) -> list[int]:
    return torch.arange(64)[group.slots].tolist()


def rows_by_slot(group: AdapterGroup) -> dict[int, set[int]]:
    """Read a group as a layer does: which row gets the product of which adapter."""
    slots = np.repeat(slots_of(group), group.rows.shape[1])
    rows = group.rows.flatten().numpy()
    if group.kept is not None:
        slots, rows = slots[group.kept], rows[group.kept]
    assert rows.tolist() == group.targets.tolist()
    return {slot: set(rows[slots == slot].tolist()) for slot in set(slots.tolist())}


@given(st.lists(st.integers(NO_ADAPTER, 40), max_size=80))
def test_each_adapted_row_is_computed_once_under_its_slot(slots: list[int]) -> None:
    groups = group_rows(slots)
    found = {slot: rows for group in groups for slot, rows in rows_by_slot(group).items()}
    assert found == {
        slot: {row for row, own in enumerate(slots) if own == slot} for slot in set(slots) - {NO_ADAPTER}
    }
    assert sum(len(group.targets) for group in groups) == sum(slot != NO_ADAPTER for slot in slots)


@given(st.lists(st.integers(NO_ADAPTER, 8), max_size=200))
def test_padding_is_bounded(slots: list[int]) -> None:
    for group in group_rows(slots):
        assert group.rows.numel() <= MAX_PADDING * len(group.targets)


def test_rows_without_adapters_need_no_product() -> None:
    assert adapter_rows(np.full(5, NO_ADAPTER), CPU) is None


def test_adapters_that_follow_each_other_are_not_copied() -> None:
    (group,) = group_rows([4, 2, 3])
    assert group.slots == slice(2, 5)


def test_a_long_chunk_does_not_pad_single_tokens() -> None:
    groups = group_rows([0] * 100 + [1, 2, 3])
    assert [tuple(group.rows.shape) for group in groups] == [(3, 1), (1, 100)]
