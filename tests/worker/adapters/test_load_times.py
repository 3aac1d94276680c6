"""How long a load is said to take, by those before it."""

from __future__ import annotations

import pytest

from worker.adapters.load_times import FIXED_S, NUM_REMEMBERED, LoadTimes


def test_the_slowest_of_the_last_loads_counts() -> None:
    times = LoadTimes()
    assert times.expect_s(10**9) == FIXED_S
    times.observe(10**6, FIXED_S + 0.5)
    times.observe(10**6, FIXED_S + 0.1)
    assert times.expect_s(2 * 10**6) == pytest.approx(1.0, rel=0.05)
    for _ in range(NUM_REMEMBERED):
        times.observe(10**6, FIXED_S + 0.1)
    assert times.expect_s(2 * 10**6) == pytest.approx(0.21)


def test_a_small_load_says_little_of_a_large_one() -> None:
    times = LoadTimes()
    times.observe(1000, FIXED_S)
    assert times.expect_s(10**9) == FIXED_S
