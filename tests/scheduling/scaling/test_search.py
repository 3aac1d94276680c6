"""The fewest workers that hold are found with few judgements."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from scheduling.scaling.search import fewest


@given(st.integers(1, 500), st.integers(-3, 600), st.integers(1, 500))
def test_the_fewest_are_found_in_few_judgements(least: int, first: int, most: int) -> None:
    judged: list[int] = []

    def holds(num: int) -> bool:
        judged.append(num)
        return num >= least

    found = fewest(first, most, holds)
    assert found == (least if least <= most else None)
    assert all(1 <= num <= most for num in judged)
    begun = min(max(1, first), most)
    assert len(judged) <= 4 + 2 * math.log2(1 + abs(begun - min(least, most)))
    if found is not None and found > 1:
        assert found - 1 in judged, "one worker less was not tried"
