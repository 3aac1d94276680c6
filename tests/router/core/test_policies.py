"""The policy's name changes what the core does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.core.arrive import find
from router.core.model.actions import Enqueue, Reject, RelayRun, TellAccepted
from router.core.model.events import StepReported, TokenRun, WorkerLoad
from scheduling.columns import TokenColumns
from scheduling.request import FinishReason, Slo, SloClass
from tests.router.core_driver import ARRIVAL, ONE, TWO, arrive, call, core_of, start

URGENT = call(ARRIVAL, slo=Slo(ttft_ms=1, slo_class=SloClass.BATCH))


def test_without_promises_all_are_taken_with_a_prediction() -> None:
    told = [
        action
        for action in arrive(core_of("chunked"), 1, URGENT)
        if isinstance(action, TellAccepted | Reject)
    ]
    assert [type(action) for action in told] == [TellAccepted]
    assert isinstance(told[0], TellAccepted)
    assert told[0].promise.at_risk
    assert told[0].promise.predicted_ttft_ms > 1
    assert any(isinstance(action, Reject) for action in arrive(core_of("slack"), 1, URGENT))


@pytest.mark.parametrize(("policy", "rank"), [("chunked", (0, 0)), ("slack", (3, 10))])
def test_the_queue_is_ordered_by_arrival_or_by_due_time(policy: str, rank: tuple[int, int]) -> None:
    hurried = call(URGENT, slo=replace(URGENT.request.slo, ttft_ms=10))
    (asked,) = [action for action in arrive(core_of(policy), 1, hurried) if isinstance(action, Enqueue)]
    assert (asked.entry.slo_class, asked.entry.due_in_ms) == rank


def test_binding_at_arrival_picks_the_worker_with_least_work() -> None:
    core = core_of("chunked")
    workers = [start(core, number)[0] for number in range(1, 31)]
    assert {workers.count(ONE.key), workers.count(TWO.key)} == {15}
    assert workers[0] != workers[1]


def test_a_run_of_tokens_is_one_action_and_ends_its_choice() -> None:
    core = core_of("chunked")
    worker_key, handle = start(core, 1)
    first = TokenColumns([handle], [0], [0], [9], [0])
    core.on(StepReported(worker_key, first, WorkerLoad(free_blocks=64)), 2.0)
    run = TokenRun(handle, 0, 1, range(49), FinishReason.LENGTH)
    actions = core.on(StepReported(worker_key, TokenColumns(), WorkerLoad(), runs=(run,)), 6.9)
    (relayed,) = [action for action in actions if isinstance(action, RelayRun)]
    assert (relayed.first_index, len(relayed.token_ids), relayed.finish) == (1, 49, FinishReason.LENGTH)
    assert relayed.max_gap_s == pytest.approx(0.1)
    session = find(core.state, "t", "r1")
    assert session is not None
    assert session.ended
    assert session.tpot_s() == pytest.approx(0.1)


def test_a_run_that_leaves_a_gap_is_a_failed_attempt() -> None:
    core = core_of("chunked")
    worker_key, handle = start(core, 1)
    run = TokenRun(handle, 0, 1, [9, 9])
    actions = core.on(StepReported(worker_key, TokenColumns(), WorkerLoad(), runs=(run,)), 2.0)
    assert any(isinstance(action, Enqueue) for action in actions)
