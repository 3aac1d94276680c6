"""Slots add up, and no promise is taken for longer than it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.scaling.demand import (
    BUCKETS,
    EMPTY,
    NUM_SLOTS,
    ROW,
    Slot,
    bucket_of,
    came,
    edge_s,
    last_slots,
    of_row,
    total,
)

requests = st.builds(
    came,
    prompt_tokens=st.integers(1, 10_000),
    cached_tokens=st.integers(0, 10_000).map(float),
    num_seqs=st.integers(1, 4),
    output_tokens=st.integers(1, 500).map(float),
    slack_s=st.none() | st.floats(-1, 100),
    pace_s=st.none() | st.floats(0.001, 10),
)


@given(st.floats(-10, 1e5))
def test_a_limit_counts_as_one_that_is_no_longer(limit_s: float) -> None:
    bucket = bucket_of(limit_s)
    assert 0 <= bucket < BUCKETS
    assert edge_s(bucket) <= max(0.0, limit_s) * (1 + 1e-6)
    if 0 < bucket < BUCKETS - 1:
        assert limit_s <= edge_s(bucket + 1) * (1 + 1e-6)


@given(st.lists(requests, max_size=8), st.integers(0, 8))
def test_two_routers_halves_are_the_whole(asked: list[Slot], cut: int) -> None:
    assert total([total(asked[:cut]), total(asked[cut:])]) == total(asked)


@given(st.lists(requests, max_size=5))
def test_a_row_is_its_slot(asked: list[Slot]) -> None:
    slot = total(asked)
    assert of_row(slot.row) == slot
    assert sum(slot.slacks) == slot.promised <= slot.prompts == len(asked)
    with pytest.raises(ValueError, match=f"accepted: {ROW}"):
        of_row(slot.row[1:])


def row(number: int, slot: Slot) -> str:
    return " ".join(map(str, (number, *slot.row)))


@given(st.sets(st.integers(0, 3 * NUM_SLOTS), max_size=20), st.integers(0, 3 * NUM_SLOTS))
def test_the_last_slots_are_those_of_the_ring_that_are_over(numbers: set[int], present: int) -> None:
    rows = [row(number, Slot(prompts=number + 1.0)) for number in numbers]
    found = last_slots(present, [*rows, "7 1 2 3"])
    wanted = [number for number in numbers if present - NUM_SLOTS < number < present]
    assert {present - len(found) + place for place, slot in enumerate(found) if slot != EMPTY} == set(wanted)
    assert all(slot.prompts in (0, present - len(found) + place + 1) for place, slot in enumerate(found))
    assert not found or found[0] != EMPTY
