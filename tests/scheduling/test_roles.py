"""Weights follow the work, slowly, and never swing."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.placement import HOLD_S, MOST_MOVE, START_WEIGHT, MixedLoad, Roles, rebalance

shares = st.floats(0, 1)
fleets = st.lists(st.tuples(shares, shares, shares), min_size=1, max_size=5)


def weight_of(roles: Roles, key: str) -> float:
    return roles.weights.get(key, START_WEIGHT)


def follow(roles: Roles, mixed: list[MixedLoad], dedicated: list[float], seconds: int) -> list[Roles]:
    seen = [roles]
    for now in range(seconds):
        seen.append(rebalance(seen[-1], mixed, dedicated, float(now)))
    return seen


@given(fleets, st.lists(shares, max_size=4))
def test_under_constant_work_all_weights_come_to_rest(
    fleet: list[tuple[float, float, float]], dedicated: list[float]
) -> None:
    mixed = [MixedLoad(str(place), prefill, decode) for place, (prefill, decode, _) in enumerate(fleet)]
    start = Roles({str(place): weight for place, (_, _, weight) in enumerate(fleet)})
    seen = follow(start, mixed, dedicated, 150)
    for entry in mixed:
        moves = [
            weight_of(after, entry.key) - weight_of(before, entry.key) for before, after in pairwise(seen)
        ]
        assert all(move >= 0 for move in moves) or all(move <= 0 for move in moves)
        assert all(abs(move) <= MOST_MOVE + 1e-12 for move in moves)
        assert all(0 <= weight_of(roles, entry.key) <= 1 for roles in seen)
    assert seen[-1].weights == seen[-60].weights


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 4))
def test_a_fleet_that_follows_its_weights_comes_to_rest_too(
    prompts: float, decodes: float, count: int
) -> None:
    roles = Roles()
    weights = []
    for now in range(400):
        weight = weight_of(roles, "0")
        load = min(prompts, weight), min(decodes, 1 - weight)
        roles = rebalance(roles, [MixedLoad(str(entry), *load) for entry in range(count)], [], float(now))
        weights.append(weight_of(roles, "0"))
    assert weights[-1] == weights[-150]


def test_an_imbalance_moves_nothing_before_it_has_lasted() -> None:
    seen = follow(Roles(), [MixedLoad("d", 0.5, 0.1)], [], int(HOLD_S) + 1)
    assert all(weight_of(roles, "d") == START_WEIGHT for roles in seen[:-1])
    assert weight_of(seen[-1], "d") == START_WEIGHT + MOST_MOVE


def test_a_burst_shorter_than_the_hold_leaves_the_weights() -> None:
    roles = Roles()
    for now in range(100):
        load = MixedLoad("d", 0.5, 0.1) if now % 8 else MixedLoad("d", 0.2, 0.2)
        roles = rebalance(roles, [load], [], float(now))
    assert weight_of(roles, "d") == START_WEIGHT


def test_an_imbalance_that_turns_starts_to_count_anew() -> None:
    roles = Roles()
    for now in range(100):
        load = MixedLoad("d", 0.5, 0.1) if now // 8 % 2 else MixedLoad("d", 0.1, 0.5)
        roles = rebalance(roles, [load], [], float(now))
    assert weight_of(roles, "d") == START_WEIGHT


def test_busy_prefill_workers_give_decode_workers_more_prompts() -> None:
    idle_decodes = [MixedLoad("d0", 0.0, 0.1), MixedLoad("d1", 0.0, 0.1)]
    start = Roles({"d0": 0.0, "d1": 0.0})
    assert weight_of(follow(start, idle_decodes, [0.95], 60)[-1], "d0") > 0.5


def test_idle_prefill_workers_take_the_share_away() -> None:
    busy_decodes = [MixedLoad("d0", 0.3, 0.5)]
    assert weight_of(follow(Roles(), busy_decodes, [0.05, 0.05], 60)[-1], "d0") == 0.0


def test_who_left_is_forgotten_and_who_joins_starts_in_the_middle() -> None:
    roles = rebalance(Roles({"old": 0.9}), [MixedLoad("new", 0.1, 0.1)], [], 0.0)
    assert roles.weights == {"new": START_WEIGHT}
    assert rebalance(roles, [], [0.9], 1.0).weights == {}


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=r"share of time is .*; accepted: 0 to 1"):
        rebalance(Roles(), [MixedLoad("d", share, 0.0)], [], 0.0)
