"""The choice of a victim and of its means, against a dumb search of both."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.cost_model import CostModel
from scheduling.memory.preemption import Means, SwapSpeed, VictimView, choose, recompute_s

COST = CostModel((0.01, 0.0001, 0.00005, 1e-9, 1e-8, 1e-9), 200.0)
SWAP = SwapSpeed(block_bytes=1_000_000, bytes_per_s=1e9)

VICTIMS = st.lists(
    st.builds(
        VictimView,
        key=st.integers(0, 99),
        num_tokens=st.integers(0, 4000),
        num_freed_blocks=st.integers(0, 50),
        num_swap_blocks=st.integers(0, 60),
        arrival=st.integers(0, 99),
        slack_s=st.one_of(st.just(math.inf), st.floats(0, 0.5)),
        can_swap=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda victim: victim.key,
)


def price(victim: VictimView, means: Means, needed: int) -> tuple[float, float]:
    """(seconds, seconds per useful block)"""
    seconds = recompute_s(victim.num_tokens, COST)
    if means is Means.SWAP:
        seconds = 2 * victim.num_swap_blocks * SWAP.block_bytes / SWAP.bytes_per_s
    return seconds, seconds / min(needed, victim.num_freed_blocks)


@given(VICTIMS, st.integers(1, 20))
def test_the_least_price_goes_among_those_whose_slack_survives(
    victims: list[VictimView], needed: int
) -> None:
    chosen = choose(victims, needed, COST, SWAP)
    options = [
        (victim, means, *price(victim, means, needed))
        for victim in victims
        if victim.num_freed_blocks
        for means in (Means.RECOMPUTE, *([Means.SWAP] if victim.can_swap else []))
    ]
    if not options:
        assert chosen is None
        return
    unhurt = [option for option in options if option[0].slack_s >= option[2]]
    assert chosen is not None
    (found,) = [option for option in options if (option[0].key, option[1]) == (chosen.key, chosen.means)]
    assert found[3] == min(option[3] for option in unhurt or options)
    assert chosen.cost_s == found[2]


def test_what_is_computed_again_costs_as_in_a_full_step() -> None:
    # Below the knee tokens are free only where nobody else uses the step.
    assert recompute_s(100, COST) == pytest.approx(0.0001 + 100 * 0.00005 + 1e-8 * 100 * 50)


def test_dear_computation_is_swapped_and_a_slow_bus_is_not() -> None:
    victim = VictimView(1, num_tokens=2000, num_freed_blocks=125, num_swap_blocks=125, arrival=1)
    fast, slow = replace(SWAP, bytes_per_s=1e11), replace(SWAP, bytes_per_s=1e8)
    told = [choose([victim], 4, COST, swap) for swap in (fast, slow)]
    assert [entry.means for entry in told if entry] == [Means.SWAP, Means.RECOMPUTE]


def test_of_equals_the_latest_is_the_victim() -> None:
    free = CostModel((0.0,) * 6, 0.0)
    one = VictimView(1, num_tokens=50, num_freed_blocks=5, num_swap_blocks=5, arrival=1)
    later, longer = replace(one, key=2, arrival=2), replace(one, key=3, arrival=3, num_tokens=90)
    chosen = choose([one, later, longer], 1, free, SWAP)
    assert chosen is not None
    assert chosen.key == 2


def test_wrong_figures_are_named() -> None:
    with pytest.raises(ValueError, match="needed is 0"):
        choose([], 0, COST, SWAP)
    with pytest.raises(ValueError, match="accepted: from 1, above 0"):
        SwapSpeed(0, 1.0)
    with pytest.raises(ValueError, match="accepted: from 1, above 0"):
        SwapSpeed(1, math.nan)
