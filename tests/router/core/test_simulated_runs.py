"""A run of tokens leaves a session as its tokens do, one report for each."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.arrive import find
from router.core.model.actions import Action, Enqueue, Relay, RequestEnded, TellFinished
from router.core.model.events import StepReported, WorkerJoined, WorkerLoad
from router.core.model.session import Session
from router.core.model.state import CoreConfig
from router.core.simulated_runs import RunsReported, SimulatedRouterCore, TokenRun
from scheduling.columns import TokenColumns
from scheduling.placement import Placement
from scheduling.policies import by_name
from scheduling.request import FinishReason
from tests.router.core_driver import COST, ONE, TWO, start

LOAD = WorkerLoad(free_blocks=64)


def core_of_two() -> SimulatedRouterCore:
    core = SimulatedRouterCore(CoreConfig("router-a", by_name("chunked"), Placement.AGGREGATED))
    for facts in (ONE, TWO):
        core.on(WorkerJoined(facts, WorkerLoad(free_blocks=facts.num_blocks), COST), 1.0)
    return core


def started() -> tuple[SimulatedRouterCore, str, int]:
    """Return a core with one request that has its first token since 2 s, its worker and its handle."""
    core = core_of_two()
    worker_key, handle = start(core, 1)
    core.on(StepReported(worker_key, TokenColumns([handle], [0], [0], [9], [0]), LOAD), 2.0)
    return core, worker_key, handle


def session_of(core: SimulatedRouterCore) -> Session:
    session = find(core.state, "t", "r1")
    assert session is not None
    return session


def with_runs(worker_key: str, *runs: TokenRun) -> RunsReported:
    return RunsReported(StepReported(worker_key, TokenColumns(), LOAD), runs)


@given(counts=st.lists(st.integers(1, 8), min_size=1, max_size=5), ends=st.booleans())
def test_a_run_leaves_what_its_tokens_leave_one_by_one(counts: list[int], ends: bool) -> None:
    (at_once, worker_key, handle), (singly, _, _) = started(), started()
    actions: tuple[list[Action], list[Action]] = [], []
    index, gap_s = 1, 0.1
    for place, count in enumerate(counts):
        is_last = ends and place == len(counts) - 1
        finish = FinishReason.LENGTH if is_last else FinishReason.NONE
        run = TokenRun(handle, 0, index, range(count), finish)
        actions[0].extend(at_once.on(with_runs(worker_key, run), 2.0 + (index + count - 1) * gap_s))
        for token_id in range(count):
            reason = int(finish) if token_id == count - 1 else 0
            row = TokenColumns([handle], [0], [index], [token_id], [reason])
            actions[1].extend(singly.on(StepReported(worker_key, row, LOAD), 2.0 + index * gap_s))
            index += 1
    together, apart = session_of(at_once), session_of(singly)
    assert together.choices[0].token_ids == apart.choices[0].token_ids
    assert together.choices[0].finish == apart.choices[0].finish
    assert together.choices[0].last_at == apart.choices[0].last_at
    assert together.timeline == apart.timeline
    assert together.tpot_s() == apart.tpot_s()
    assert together.max_gap_s == pytest.approx(apart.max_gap_s)
    remaining = [core.state.fleet.workers[worker_key].remaining_tokens for core in (at_once, singly)]
    assert remaining[0] == remaining[1]
    assert at_once.state.counters == singly.state.counters
    assert [without_gap(action) for action in actions[0]] == [
        without_gap(action) for action in actions[1] if not isinstance(action, Relay)
    ]


def without_gap(action: Action) -> Action:
    """Return the action without what sums of times round differently."""
    if isinstance(action, RequestEnded | TellFinished):
        return dataclasses.replace(action, outcome=dataclasses.replace(action.outcome, max_gap_s=0.0))
    return action


def test_a_run_ends_its_choice() -> None:
    core, worker_key, handle = started()
    core.on(with_runs(worker_key, TokenRun(handle, 0, 1, range(49), FinishReason.LENGTH)), 6.9)
    session = session_of(core)
    assert session.ended
    assert (len(session.choices[0].token_ids), session.choices[0].finish) == (50, FinishReason.LENGTH)
    assert session.max_gap_s == pytest.approx(0.1)
    assert session.tpot_s() == pytest.approx(0.1)


def test_a_run_that_leaves_a_gap_is_a_failed_attempt() -> None:
    core = core_of_two()
    worker_key, handle = start(core, 1)
    actions = core.on(with_runs(worker_key, TokenRun(handle, 0, 1, [9, 9])), 2.0)
    assert any(isinstance(action, Enqueue) for action in actions)
