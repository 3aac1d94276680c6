"""The simulated policy is the one asked for, by name or not."""

import dataclasses

import pytest

from scheduling.policies.slack import SLACK
from sim.play.simulation import run
from sim.result import End
from sim.spec import FleetShape, SimSpec
from tests.sim.conftest import make_profile, make_trace


def test_a_policy_made_for_an_experiment_is_played_as_one_with_a_name() -> None:
    trace = make_trace(60, 60.0, ttft_ms=60, tpot_ms=30)
    named = run(SimSpec(make_profile(), FleetShape(0, 1), trace))
    assert run(SimSpec(make_profile(), FleetShape(0, 1), trace, policy=SLACK)).requests == named.requests
    assert End.REFUSED in {request.end for request in named.requests}
    all_taken = dataclasses.replace(SLACK, name="all taken", promises=False)
    ends = {
        request.end
        for request in run(SimSpec(make_profile(), FleetShape(0, 1), trace, policy=all_taken)).requests
    }
    assert ends == {End.FINISHED}


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="policy is 'best'; accepted: static"):
        SimSpec(make_profile(), FleetShape(0, 1), make_trace(2, 1.0), policy="best")
