"""KV on a disk is read where that is expected to be faster than computing it, and for no longer."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.cost_model import UNKNOWN_COST, CostModel
from scheduling.memory.disk_reads import MOST_S, read_limit_s
from scheduling.memory.preemption import recompute_s

COST = CostModel((5e-3, 1e-5, 2e-4, 5e-8, 1e-8, 1e-9), 20.0)
TOKENS = st.integers(1, 5000)


@given(TOKENS, st.integers(0, 5000), st.floats(0, 100))
def test_a_read_is_begun_only_if_it_is_faster(num_tokens: int, num_before: int, read_s: float) -> None:
    compute_s = recompute_s(num_tokens, COST, num_before)
    limit_s = read_limit_s(num_tokens, num_before, read_s, COST)
    if read_s < min(compute_s, MOST_S):
        assert limit_s == min(compute_s, MOST_S)
    else:
        assert limit_s is None


@given(TOKENS, st.floats(0, 20))
def test_the_further_behind_the_longer_may_it_take(num_tokens: int, read_s: float) -> None:
    limits = [read_limit_s(num_tokens, num_before, read_s, COST) or 0.0 for num_before in (0, 100, 4000)]
    assert limits == sorted(limits)


def test_without_known_costs_a_read_has_a_fixed_time() -> None:
    assert read_limit_s(100, 0, 0.5, UNKNOWN_COST) == MOST_S
    assert read_limit_s(100, 0, math.nextafter(MOST_S, math.inf), UNKNOWN_COST) is None


@pytest.mark.parametrize(("num_tokens", "num_before"), [(0, 0), (1, -1)])
def test_impossible_sizes_are_refused(num_tokens: int, num_before: int) -> None:
    with pytest.raises(ValueError, match=f"are {num_tokens}, {num_before}; accepted: from 1, from 0"):
        read_limit_s(num_tokens, num_before, 0.0, COST)
