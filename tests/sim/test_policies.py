"""The simulated policy is the one asked for, by name or not."""

import dataclasses
import random

import pytest

from scheduling.placement import SCORES, Placement
from scheduling.policies.policy import Order, Policy
from scheduling.policies.polyserve import POLYSERVE
from scheduling.policies.qoserve import QOSERVE
from scheduling.policies.slack import SLACK
from sim.play.simulation import run
from sim.result import End
from sim.spec import FleetShape, SimSpec
from sim.workloads.trace import TraceRequest
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


def kept_with(policy: str | Policy, fleet: FleetShape, trace: tuple[TraceRequest, ...]) -> int:
    """Return how many requests kept their promises."""
    placement = Placement.DISAGGREGATED if fleet.prefill else Placement.AGGREGATED
    profile = make_profile(num_blocks=20_000, max_num_seqs=256)
    result = run(SimSpec(profile, fleet, trace, policy=policy, placement=placement))
    assert {request.end for request in result.requests} == {End.FINISHED}
    return sum(request.good for request in result.requests)


def test_giving_way_when_late_saves_others() -> None:
    trace = make_trace(400, 100.0, ttft_ms=500, tpot_ms=60)
    by_due_time = dataclasses.replace(QOSERVE, name="by due time", order=Order.DUE)
    policies = ("chunked", "slos_serve", "jitserve", "qoserve")
    kept = {each: kept_with(each, FleetShape(0, 1), trace) for each in policies}
    alone = kept_with(by_due_time, FleetShape(0, 1), trace)
    assert alone > 2 * kept["chunked"], (kept, alone)
    assert kept["slos_serve"] > alone, (kept, alone)
    assert kept["jitserve"] > kept["qoserve"] > 1.3 * alone, (kept, alone)


def test_paces_apart_keep_more_promises_than_paces_mixed() -> None:
    """Two decode workers: with a strict pace on both, neither can have a large batch."""
    draw = random.Random(1)
    trace = tuple(
        dataclasses.replace(request, prompt_tokens=20, output_tokens=200, tpot_ms=draw.choice((6, 60)))
        for request in make_trace(500, 100.0, ttft_ms=2000)
    )
    mixed = dataclasses.replace(POLYSERVE, name="mixed", scores=SCORES)
    fleet = FleetShape(1, 2)
    assert kept_with("polyserve", fleet, trace) > 1.05 * kept_with(mixed, fleet, trace)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="policy is 'best'; accepted: static"):
        SimSpec(make_profile(), FleetShape(0, 1), make_trace(2, 1.0), policy="best")
