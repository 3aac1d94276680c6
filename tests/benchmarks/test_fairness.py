"""A tenant that asks for a tenth of a busy fleet gets it, and what it leaves is not wasted."""

from __future__ import annotations

import pytest

from benchmarks.fairness import Cell, play

SPAN_S = 30.0


@pytest.mark.parametrize(("ttft_ratio", "served"), [(10.0, 0.9), (50.0, 0.98)])
def test_the_small_tenant_is_served_and_hardly_any_capacity_is_lost(ttft_ratio: float, served: float) -> None:
    cell = Cell(load=2.0, ttft_ratio=ttft_ratio)
    apart, together = play(cell, 1, SPAN_S), play(cell, 1, SPAN_S, together=True)
    assert together.small < 0.75, "as one of many it would not be served"
    assert apart.small >= served
    assert apart.small > apart.big
    assert apart.work_per_s >= 0.975 * together.work_per_s


def test_a_fleet_that_is_not_busy_refuses_nobody_for_fairness() -> None:
    cell = Cell(load=0.7, ttft_ratio=50.0)
    apart, together = play(cell, 1, SPAN_S), play(cell, 1, SPAN_S, together=True)
    assert apart.big == together.big
