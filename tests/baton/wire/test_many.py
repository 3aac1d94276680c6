"""Which call a generation gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.wire.many import ALWAYS, BEYOND_FEW, Sharing


@pytest.mark.parametrize(
    ("num_alone", "loads", "place"),
    [
        (0, [], None),
        (7, [64, 1], None),
        (8, [], 0),
        (8, [63], 0),
        (8, [64], 1),
        (8, [64, 64], 2),
        (8, [64, 3, 2, 2], 2),
        (50, [0], 0),
    ],
)
def test_a_few_are_alone_and_further_ones_share_the_emptiest_call(
    num_alone: int, loads: list[int], place: int | None
) -> None:
    assert BEYOND_FEW.place(num_alone, loads) == place


def test_a_gateways_generations_all_share() -> None:
    assert [ALWAYS.place(0, loads) for loads in ([], [255], [256])] == [0, 0, 1]


@given(
    st.builds(Sharing, st.integers(0, 4), st.integers(1, 5)),
    st.lists(st.one_of(st.none(), st.integers(0, 99)), max_size=60),
)
def test_calls_are_as_few_as_the_limits_allow(sharing: Sharing, played: list[int | None]) -> None:
    """None begins a generation, and a number ends one of those that run."""
    running: list[int | None] = []  # where each one is
    loads: list[int] = []
    for ends in played:
        if ends is None:
            num_alone = running.count(None)
            place = sharing.place(num_alone, loads)
            assert (place is None) == (num_alone < sharing.num_alone)
            if place == len(loads):
                assert all(load == sharing.most for load in loads)
                loads.append(0)
            if place is not None:
                assert loads[place] == min(loads)
                loads[place] += 1
                assert loads[place] <= sharing.most
            running.append(place)
        elif running and (place := running.pop(ends % len(running))) is not None:
            loads[place] -= 1
