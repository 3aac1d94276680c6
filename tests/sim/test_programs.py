"""Programs in simulation: a call comes after the one before, and all have one deadline."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from runtime.profiles import load_profile
from sim.metrics import measure_programs
from sim.play.simulation import run
from sim.result import End, SimResult
from sim.spec import FleetShape, SimSpec
from sim.workloads.agents import FEWEST_CALLS, MOST_CALLS, Call, draw_agents
from sim.workloads.trace import TraceRequest

PROFILE = load_profile("h200-llama-3.1-8b")


def lone_s(call: Call) -> float:
    return 0.008 * call.output_tokens + 3e-5 * call.new_tokens


def agents(rate: float, duration_s: float = 20.0) -> tuple[TraceRequest, ...]:
    return draw_agents(rate, duration_s, 1, lone_s)


def play(trace: tuple[TraceRequest, ...], **others: object) -> SimResult:
    return run(SimSpec(profile=PROFILE, fleet=FleetShape(0, 1), trace=trace, seed=1, drain_s=400.0, **others))  # type: ignore[arg-type]


def test_each_call_comes_when_its_think_time_is_over() -> None:
    result = play(agents(0.5))
    assert not result.leftovers
    assert {request.end for request in result.requests} == {End.FINISHED}
    for request in result.requests:
        turn = request.asked.turn
        assert turn is not None
        if turn.before is not None:
            before = result.requests[turn.before]
            assert before.e2e_s is not None
            gap_s = request.asked.at_s - (before.asked.at_s + before.e2e_s)
            assert turn.think_s - 1e-6 <= gap_s <= turn.think_s + 0.1


def test_programs_have_several_calls_that_go_on_from_each_other() -> None:
    trace = agents(2.0)
    by_program: dict[int, list[TraceRequest]] = {}
    for request in trace:
        assert request.turn is not None
        by_program.setdefault(request.turn.program, []).append(request)
    assert {FEWEST_CALLS, MOST_CALLS} <= {len(calls) for calls in by_program.values()}
    for calls in by_program.values():
        for call, following in pairwise(calls):
            assert following.prompt_tokens > call.prompt_tokens + call.output_tokens
            assert following.shared_blocks[: len(call.shared_blocks)] == call.shared_blocks
    result = play(trace)
    later = [request for request in result.requests if request.asked.turn and request.asked.turn.before]
    assert sum(request.cached_tokens > 0 for request in later) > 0.9 * len(later)


def test_a_refused_call_comes_back_while_its_program_has_time() -> None:
    trace = tuple(replace(call, ttft_ms=60, tpot_ms=12) for call in agents(6.0))
    result = play(trace, states_programs=False)
    firsts = [request for request in result.requests if request.asked.turn and not request.asked.turn.before]
    came_back = [request for request in firsts if request.asked.at_s > request.start_s]
    assert {request.end for request in came_back} >= {End.FINISHED}
    assert [request for request in result.requests if request.end is End.REFUSED]


@pytest.mark.parametrize("rate", [2.0, 5.0])
def test_stated_programs_are_in_time_more_often_under_load(rate: float) -> None:
    trace = agents(rate, 40.0)
    stated = measure_programs(play(trace))
    unstated = measure_programs(play(trace, states_programs=False))
    assert stated.programs == unstated.programs
    assert stated.calls_ended == stated.calls
    assert stated.in_time_share >= unstated.in_time_share
    assert rate < 5 or stated.in_time_share > unstated.in_time_share + 0.1
