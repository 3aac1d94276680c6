"""Nothing is lost, nothing is left, and the same specification gives the same result."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.cost_model import CostModel, StepShape
from scheduling.placement import Placement
from scheduling.policies import NAMES
from sim.commands.false_refusals import false_refusals
from sim.play.simulation import Simulation, run
from sim.result import End, SimResult
from sim.spec import FleetShape, Overheads, SimSpec
from sim.step_times import RecordedStep
from tests.sim.conftest import make_profile, make_trace

WAYS = [(name, Placement.AGGREGATED) for name in NAMES]
WAYS += [(name, Placement.DISAGGREGATED) for name in ("slos_serve", "jitserve", "qoserve", "polyserve")]
WAYS += [
    (name, entry)
    for name in ("chunked", "slack")
    for entry in (Placement.DISAGGREGATED, Placement.CONDITIONAL)
]


def assert_same(one: SimResult, other: SimResult) -> None:
    assert one.requests == other.requests
    for mine, its in zip(one.workers, other.workers, strict=True):
        np.testing.assert_array_equal(mine.step_ends, its.step_ends)
        np.testing.assert_array_equal(mine.step_sizes, its.step_sizes)
        assert mine.busy_s == pytest.approx(its.busy_s)  # a sum, whose terms are grouped otherwise
        for name in (
            "num_steps",
            "num_mixed_steps",
            "chunk_tokens",
            "decode_tokens",
            "preemptions",
            "kv_held",
        ):
            assert getattr(mine, name) == getattr(its, name), name


@pytest.mark.parametrize(("policy", "placement"), WAYS)
def test_every_request_ends_once_and_nothing_is_left(policy: str, placement: Placement) -> None:
    trace = make_trace(80, 30.0, ttft_ms=2000, tpot_ms=30, shared=True)
    fleet = FleetShape(0, 2) if placement is Placement.AGGREGATED else FleetShape(1, 1)
    simulation = Simulation(SimSpec(make_profile(), fleet, trace, policy=policy, placement=placement))
    result = simulation.run()
    assert {request.end for request in result.requests} <= {End.FINISHED, End.REFUSED}
    assert not result.leftovers
    for request in result.requests:
        if request.end is End.FINISHED:
            assert request.ttft_s is not None
            assert request.e2e_s is not None
            assert 0 < request.ttft_s <= request.e2e_s
            assert (request.tpot_s is None) == (request.asked.output_tokens == 1)
    computed = sum(worker.chunk_tokens for worker in result.workers)
    asked = sum(request.asked.prompt_tokens for request in result.requests if request.end is End.FINISHED)
    cached = sum(request.cached_tokens for request in result.requests)
    again = sum(worker.recomputed_tokens for worker in result.workers)
    assert computed == asked - cached + again
    decoded = sum(worker.decode_tokens for worker in result.workers)
    finished = [request.asked.output_tokens for request in result.requests if request.end is End.FINISHED]
    assert decoded == sum(finished) - len(finished)


@settings(max_examples=25, deadline=None)
@given(
    way=st.sampled_from(WAYS),
    seed=st.integers(0, 1000),
    rate=st.sampled_from([5.0, 40.0, 200.0]),
    num_blocks=st.sampled_from([80, 400, 4000]),
    max_num_seqs=st.sampled_from([4, 64]),
    noise=st.sampled_from([0.0, 1.0]),
    tpot_ms=st.sampled_from([None, 6, 40]),
    slack_tokens=st.sampled_from([0, 50]),
)
def test_stretches_are_exactly_their_steps(
    way: tuple[str, Placement],
    seed: int,
    rate: float,
    num_blocks: int,
    max_num_seqs: int,
    noise: float,
    tpot_ms: int | None,
    slack_tokens: int,
) -> None:
    policy, placement = way
    fleet = FleetShape(0, 2) if placement is Placement.AGGREGATED else FleetShape(1, 1)
    spec = SimSpec(
        make_profile(num_blocks=num_blocks, max_num_seqs=max_num_seqs),
        fleet,
        make_trace(25, rate, seed, ttft_ms=3000, tpot_ms=tpot_ms, itl_ms=tpot_ms, slack_tokens=slack_tokens),
        policy=policy,
        placement=placement,
        seed=seed,
        noise=noise,
    )
    stretched = run(spec)
    assert_same(stretched, run(dataclasses.replace(spec, stretch=False)))
    assert not stretched.leftovers


def test_the_same_seed_gives_the_same_result_and_another_one_does_not() -> None:
    spec = SimSpec(make_profile(), FleetShape(1, 2), make_trace(60, 40.0, tpot_ms=20), num_routers=2)
    assert_same(run(spec), run(spec))
    other = run(dataclasses.replace(spec, seed=1))
    assert other.requests != run(spec).requests


def test_memory_that_runs_short_preempts_without_losing_anything() -> None:
    """Short answers first: then the long ones are not expected."""
    trace = tuple(
        dataclasses.replace(entry, output_tokens=8 if place < 40 else 100, max_tokens=120)
        for place, entry in enumerate(make_trace(80, 20.0))
    )
    result = run(SimSpec(make_profile(num_blocks=150), FleetShape(0, 1), trace, policy="chunked"))
    assert all(request.end is End.FINISHED for request in result.requests)
    assert not result.leftovers
    assert result.workers[0].preemptions > 0


def test_static_batching_is_slower_than_chunked_where_lengths_differ() -> None:
    trace = make_trace(200, 500.0)
    profile = make_profile(max_num_seqs=16)
    ended = {
        policy: max(request.asked.at_s + (request.e2e_s or 0.0) for request in run(
            SimSpec(profile, FleetShape(0, 1), trace, policy=policy)
        ).requests)
        for policy in ("static", "chunked")
    }  # fmt: skip
    assert ended["static"] > 1.3 * ended["chunked"]


def test_a_lone_request_takes_what_its_steps_take() -> None:
    profile = make_profile()
    trace = (dataclasses.replace(make_trace(1, 1.0)[0], prompt_tokens=100, output_tokens=3),)
    nothing = Overheads(receive_s=0.0, store_s=0.0, command_s=0.0, report_s=0.0, handoff_s=0.0)
    result = run(SimSpec(profile, FleetShape(0, 1), trace, noise=0.0, overheads=nothing))
    a0, c1, c3, c4, c5, _ = profile.cost.coefficients
    prefill_s = a0 + c1 + c3 * 36 + c5 * 100 * 50
    decode_s = [a0 + c1 + c4 * context for context in (101, 102)]
    (one,) = result.requests
    assert one.ttft_s == pytest.approx(prefill_s)
    assert one.tpot_s == pytest.approx(sum(decode_s) / 2)
    assert one.max_gap_s == pytest.approx(decode_s[1])


def test_recorded_steps_are_followed() -> None:
    profile = make_profile()
    trace = make_trace(20, 10.0)
    spec = SimSpec(profile, FleetShape(0, 1), trace, noise=0.0)
    shape = Simulation(spec).run().workers[0]
    assert shape.num_steps > 0
    slow = run(dataclasses.replace(spec, step_times={"decode-0": _twice_as_slow(profile.cost)}))
    plain = run(spec)
    for late, request in zip(slow.requests, plain.requests, strict=True):
        assert late.e2e_s is not None
        assert request.e2e_s is not None
        assert late.e2e_s > 1.5 * request.e2e_s


def _twice_as_slow(cost: CostModel) -> tuple[RecordedStep, ...]:
    shapes = [StepShape.of(4, 400, ()), StepShape.of(4, 400, [(0, 100)])]
    return tuple(RecordedStep(0.0, shape, 2 * cost.predict(shape)) for shape in shapes)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"policy": "magic"}, "policy"),
        ({"trace": ()}, "trace"),
        ({"token_budget": 0}, "token_budget"),
        ({"num_routers": 0}, "num_routers"),
        ({"num_stages": 0}, "num_stages"),
        ({"noise": -1.0}, "noise"),
        ({"noise": float("nan")}, "noise"),
        ({"drain_s": float("inf")}, "drain_s"),
        ({"step_times": {"decode-9": ()}}, "step_times"),
    ],
)
def test_a_wrong_specification_is_refused_by_field(change: dict, field: str) -> None:
    spec = SimSpec(make_profile(), FleetShape(0, 1), make_trace(1, 1.0))
    with pytest.raises(ValueError, match=rf"{field} is .*; accepted"):
        dataclasses.replace(spec, **change)


def test_a_request_longer_than_the_profile_stands_is_refused() -> None:
    long = dataclasses.replace(make_trace(1, 1.0)[0], prompt_tokens=9000)
    with pytest.raises(ValueError, match=r"request 0 of the trace can grow to .* at most 8192"):
        SimSpec(make_profile(), FleetShape(0, 1), (long,))


@pytest.mark.parametrize(("text", "shape"), [("2p4d", FleetShape(2, 4)), ("6d", FleetShape(0, 6))])
def test_fleets_are_read(text: str, shape: FleetShape) -> None:
    assert FleetShape.parse(text) == shape
    assert str(shape) == text


@pytest.mark.parametrize("text", ["", "2p", "4", "0d", "-1p2d", "2d4p"])
def test_a_fleet_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="accepted"):
        FleetShape.parse(text)


@pytest.mark.parametrize("name", ["store_s", "load_every_s"])
def test_overheads_are_finite(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is nan"):
        Overheads(**{name: float("nan")})


def test_refusals_that_were_right_are_not_called_false() -> None:
    """A first token sooner than its prompt can be computed is no one's to promise.

    Without noise and with hardly any load: near the limit luck decides, and a promise must not rely on it.
    """
    trace = make_trace(40, 0.2, ttft_ms=20)
    spec = SimSpec(make_profile(), FleetShape(0, 1), trace, noise=0.0)
    result = run(spec)
    assert any(request.end is End.REFUSED for request in result.requests)
    found = false_refusals(spec, result, 5)
    assert found is not None
    assert (found.sampled, found.share) == (5, 0.0)
    assert {cause: counts.false for cause, counts in found.by_cause.items()} == {"own promise": 0}


def test_a_placebo_is_a_gain_by_chance_alone() -> None:
    """Without noise, and with promises far away, nobody turns: neither by the request nor by nothing."""
    trace = tuple(
        dataclasses.replace(entry, ttft_ms=30 if place % 5 == 0 else 60_000)
        for place, entry in enumerate(make_trace(40, 8.0))
    )
    spec = SimSpec(make_profile(), FleetShape(0, 1), trace, noise=0.0)
    found = false_refusals(spec, run(spec), 4)
    assert found is not None
    assert (found.placebo_share, found.placebo_gain) == (0.0, 0.0)
