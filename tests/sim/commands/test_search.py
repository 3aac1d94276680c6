"""The search finds the cheapest by asking as little as it can."""

import pytest

from scheduling.placement import Placement
from sim.commands.arms import Arm
from sim.commands.search import Search, Tried
from sim.spec import FleetShape

PER_WORKER = 10.0


def _estimate(fleet: FleetShape, placement: Placement) -> float:
    mixed = placement is Placement.AGGREGATED
    return PER_WORKER * (fleet.size if mixed else min(3 * fleet.prefill, fleet.decode))


class Hardware:
    """Carries a share of what arithmetic says, whatever the roles."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.asked: list[tuple[int, float]] = []

    def __call__(self, candidate: Arm, rate: float) -> Tried:
        self.asked.append((candidate.fleet.size, rate))
        carried = self.share * PER_WORKER * candidate.fleet.size
        good = min(1.0, carried / rate)
        return Tried(candidate, good, 1.0 - good, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(("share", "size"), [(0.5, 9), (1.0, 5), (2.0, 3)])
def test_the_smallest_that_holds_is_found_from_either_side(share: float, size: int) -> None:
    hardware = Hardware(share)
    found = Search("slack", 0.99, 20, (None,), _estimate, hardware).cheapest(45.0)
    assert found is not None
    assert found.best.candidate.fleet.size == size
    assert found.best.good >= 0.99
    assert found.cheaper is not None
    assert found.cheaper.candidate.fleet.size == size - 1
    assert found.cheaper.good < 0.99
    carried = share * PER_WORKER * size / 0.99
    assert 45.0 <= found.most_rate <= carried
    assert found.most_rate == pytest.approx(carried, rel=0.05)


def test_one_worker_has_no_cheaper_one() -> None:
    found = Search("slack", 0.9, 20, (None,), _estimate, Hardware(1.0)).cheapest(1.0)
    assert found is not None
    assert found.best.candidate.fleet.size == 1
    assert found.cheaper is None
    assert found.most_rate >= 4.0


def test_a_limit_that_is_too_low_has_no_answer() -> None:
    assert Search("slack", 0.99, 3, (None,), _estimate, Hardware(1.0)).cheapest(500.0) is None


def test_why_names_what_was_missed() -> None:
    one = Tried(Arm("slack", Placement.AGGREGATED, FleetShape(0, 1), None), 0.8, 0.15, 0.05, 0.0, 0.0)
    assert one.why == "15.0% refused, 5.0% with a late first token"
