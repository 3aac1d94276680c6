"""The autoscaler decides as Kubernetes documents it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.scaling.hpa import STABILISATION_S, SYNC_S, Autoscaler, for_average_value, for_pods


@pytest.mark.parametrize(
    ("total", "target", "replicas", "wanted"),
    [
        (10, 1, 4, 10),
        (43, 10, 4, 4),
        (45, 10, 4, 5),
        (36, 10, 4, 4),
        (35, 10, 4, 4),
        (30, 10, 4, 3),
    ],
)
def test_an_average_value_counts_within_a_tolerance(
    total: float, target: float, replicas: int, wanted: int
) -> None:
    assert for_average_value(total, target, replicas) == wanted


@pytest.mark.parametrize(
    ("values", "unready", "target", "wanted"),
    [
        ([1.0, 1.0], 0, 0.5, 4),
        ([0.52, 0.52], 0, 0.5, 2),
        ([1.0, 1.0], 2, 0.5, 4),
        ([0.8, 0.8], 2, 0.5, 4),
        ([0.1, 0.1], 0, 0.5, 1),
        ([0.1, 0.1], 2, 0.5, 3),
        ([], 3, 0.5, 3),
    ],
)
def test_starting_pods_hold_the_decision_back(
    values: list[float], unready: int, target: float, wanted: int
) -> None:
    assert for_pods(values, unready, target) == wanted


def test_it_shrinks_to_the_most_of_the_window_and_no_sooner() -> None:
    scaler, now = Autoscaler(1, 50), 0.0
    assert scaler.decide(8, 8, now) == 8
    while now + SYNC_S < STABILISATION_S:
        now += SYNC_S
        assert scaler.decide(2, 8, now) == 8
    assert scaler.decide(2, 8, now + SYNC_S) == 2


@given(st.integers(1, 40), st.integers(0, 100))
def test_it_at_most_doubles_or_adds_four(replicas: int, proposed: int) -> None:
    found = Autoscaler(1, 50).decide(proposed, replicas, 0.0)
    assert 1 <= found <= min(50, max(replicas + 4, 2 * replicas))
    assert found == min(50, max(1, min(proposed, max(replicas + 4, 2 * replicas))))
