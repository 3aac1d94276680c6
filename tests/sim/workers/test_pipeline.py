"""Workers with several stages: what is in flight together, what is lost, how long stages idle."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.batch import Step
from engine.core.turns.worker_core import WorkerCore
from runtime.profiles import load_profile
from scheduling.policies import NAMES
from scheduling.prediction import num_micro_batches
from sim.bubbles import PipelineTimes
from sim.play.simulation import run
from sim.result import End, SimResult
from sim.spec import FleetShape, SimSpec
from sim.workers.pipeline import Stages
from sim.workload import Promises, draw
from tests.sim.conftest import make_profile, make_trace


def pipelined(policy: str, num_stages: int, **changes: Any) -> SimSpec:
    spec = SimSpec(
        make_profile(),
        FleetShape(0, 1),
        make_trace(60, 40.0),
        policy=policy,
        num_stages=num_stages,
        drain_s=600.0,
    )
    return dataclasses.replace(spec, **changes)


def times_of(result: SimResult) -> PipelineTimes:
    (worker,) = result.workers
    assert worker.pipeline is not None
    return worker.pipeline


@pytest.mark.parametrize("policy", NAMES)
@pytest.mark.parametrize("num_stages", [2, 4, 8])
def test_every_request_ends_and_nothing_is_left(policy: str, num_stages: int) -> None:
    result = run(pipelined(policy, num_stages))
    ends = Counter(request.end for request in result.requests)
    assert ends[End.FINISHED] + ends[End.REFUSED] == len(result.requests)
    assert ends[End.FINISHED] > 0
    assert result.leftovers == {}


def test_memory_that_runs_short_preempts_without_losing_anything() -> None:
    trace = tuple(
        dataclasses.replace(entry, output_tokens=8 if place < 40 else 100, max_tokens=120)
        for place, entry in enumerate(make_trace(80, 200.0))
    )
    result = run(pipelined("chunked", 4, profile=make_profile(num_blocks=40), trace=trace))
    assert result.workers[0].preemptions > 0
    assert {request.end for request in result.requests} == {End.FINISHED}
    assert result.leftovers == {}


@pytest.mark.parametrize("policy", ["orca", "prefill_first", "chunked", "slack"])
def test_a_sequence_is_in_one_micro_batch_and_each_has_its_share(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_stages, most = 4, 0
    in_flight: list[Step] = []
    launch, over = WorkerCore.join, WorkerCore.mark_written

    def join(core: WorkerCore, step: Step) -> None:
        nonlocal most
        share = -(-core.batch.num_rows // num_micro_batches(num_stages))
        assert step.num_decodes <= share
        launch(core, step)
        assert not any(step.groups & other.groups for other in in_flight)
        in_flight.append(step)
        most = max(most, len(in_flight))

    def mark_written(core: WorkerCore, step: Step) -> None:
        assert in_flight.pop(0) is step
        over(core, step)

    monkeypatch.setattr(WorkerCore, "join", join)
    monkeypatch.setattr(WorkerCore, "mark_written", mark_written)
    run(pipelined(policy, num_stages))
    assert num_stages <= most <= num_micro_batches(num_stages)


def test_promises_fill_the_stages_and_are_kept() -> None:
    """More comes than four stages can carry, and the router admits as much as keeps them busy."""
    profile = load_profile("h200-llama-3.1-8b")
    trace = draw("mixed", "poisson", 30.0, 10.0, 4, Promises(ttft_ms=1500, tpot_ms=25))
    spec = SimSpec(profile, FleetShape(0, 1), trace, policy="slack", num_stages=4, seed=4)
    result = run(spec)
    promised = [request for request in result.requests if request.promised_ttft_s is not None]
    assert sum(request.good for request in promised) >= 0.98 * len(promised)
    assert len(promised) >= 0.9 * len(trace)
    assert times_of(result).bubble_share(1.0, 10.0) < 0.05


def test_a_lone_request_takes_as_long_as_without_stages() -> None:
    trace = (dataclasses.replace(make_trace(1, 1.0)[0], prompt_tokens=100, output_tokens=30),)
    alone, staged = (run(pipelined("chunked", stages, trace=trace, noise=0.0)) for stages in (1, 4))
    assert staged.requests[0].e2e_s == pytest.approx(alone.requests[0].e2e_s)
    # One micro-batch keeps one of four stages busy, and a busy period lasts as long as the request.
    assert times_of(staged).bubble_share() == pytest.approx(0.75, abs=0.03)
    assert times_of(staged).opens.sum() == 1


def test_gaps_are_those_of_each_request() -> None:
    result = run(pipelined("chunked", 2))
    (worker,) = result.workers
    assert worker.step_sizes.sum() == worker.decode_tokens
    gaps = times_of(result).token_gaps[:, 1]
    assert len(gaps) == sum(request.asked.output_tokens - 1 for request in result.requests)
    assert gaps.max() == pytest.approx(max(request.max_gap_s or 0.0 for request in result.requests))


@given(
    num_stages=st.integers(2, 5),
    steps=st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.1, 5.0)), min_size=1, max_size=12),
)
def test_a_stage_serves_one_step_at_a_time_in_order(
    num_stages: int, steps: list[tuple[float, float]]
) -> None:
    stages, now = Stages(num_stages), 0.0
    for wait_s, step_s in steps:
        now = max(now, stages.first_free_at) + wait_s
        end = stages.enter(now, step_s, opens=False)
        assert end >= now + step_s - 1e-9
    times = stages.times([])
    assert (times.begins[1:] >= times.ends[:-1]).all()
    assert (times.begins[:, 1:] >= times.ends[:, :-1]).all()
    spent = (times.ends - times.begins).sum(axis=1)
    assert spent == pytest.approx([step_s for _, step_s in steps])


def times(durations: Sequence[float], opens: Sequence[bool]) -> PipelineTimes:
    stages = Stages(2)
    ends: list[float] = []
    for place, (step_s, is_first) in enumerate(zip(durations, opens, strict=True)):
        came_back = ends[place - 2] if place >= 2 else 0.0
        now = max(stages.first_free_at, came_back) + (100.0 if is_first and place else 0.0)
        ends.append(stages.enter(now, step_s, opens=is_first))
    return stages.times([])


def test_equal_steps_have_no_bubbles_and_unequal_steps_have_some() -> None:
    opens = [True] + 39 * [False]
    assert times(40 * [2.0], opens).bubble_share() == pytest.approx(0.0)
    # Two micro-batches in turns: the shorter one waits for the longer in both stages.
    assert times(20 * [3.0, 1.0], opens).bubble_share() == pytest.approx(1 / 3, abs=0.02)


def test_time_between_two_busy_periods_is_no_bubble() -> None:
    assert times([2.0, 2.0, 2.0, 2.0], [True, False, True, False]).bubble_share() == pytest.approx(0.0)
    assert times([2.0, 2.0, 2.0, 2.0], [True, False, False, False]).bubble_share() == pytest.approx(0.0)
    assert math.isclose(
        PipelineTimes(*(np.zeros((0, 2)),) * 2, np.zeros(0, bool), np.zeros((0, 2))).bubble_share(), 0.0
    )
