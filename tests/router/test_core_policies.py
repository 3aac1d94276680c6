"""What the policy's name changes in the core."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.actions import Action, AskGrants, Enqueue, Reject, RelayRun, SendDecode, Settle, TellAccepted
from router.book import CoreConfig
from router.core import RouterCore
from router.events import (
    Arrived,
    Enqueued,
    Event,
    Granted,
    GrantsAnswered,
    SettleAnswered,
    StepReported,
    TokenRun,
    WorkerJoined,
)
from router.fleet import WorkerFacts, WorkerLoad
from scheduling.columns import TokenColumns
from scheduling.cost_model import CostModel
from scheduling.placement import Placement
from scheduling.policies import by_name
from scheduling.request import FinishReason, SamplingParams, Slo, SloClass, StopRules
from state.records import Settled

COST = CostModel((0.01, 0.0, 0.0, 0.0, 0.0, 0.0), 0.0)
ONE, TWO = (WorkerFacts(f"d{i}", "1", "decode", f"d{i}:1", "fp", 4, 64, 8, 64) for i in (1, 2))
ARRIVAL = Arrived(
    listener=1,
    tenant="t",
    request_id="r1",
    session=0,
    digest=b"",
    prompt_token_ids=range(6),
    sampling=SamplingParams(),
    seed_given=True,
    stop=StopRules(max_tokens=50),
    slo=Slo(ttft_ms=1, slo_class=SloClass.BATCH),
    received_at=1.0,
)


def core_of(policy: str) -> RouterCore:
    core = RouterCore(CoreConfig("router-a", by_name(policy), Placement.AGGREGATED))
    for facts in (ONE, TWO):
        core.on(WorkerJoined(facts, WorkerLoad(free_blocks=64), COST), 1.0)
    return core


def arrive(core: RouterCore, number: int) -> list[Action]:
    """A request is queued behind nobody."""
    event = replace(ARRIVAL, listener=number, request_id=f"r{number}")
    return core.on(event, 1.0) + core.on(Enqueued(f"t/r{number}/0", 0, 0), 1.0)


def start(core: RouterCore, number: int) -> tuple[str, int]:
    """Bind and dispatch it; returns its worker and handle."""
    (ask,) = [one for one in arrive(core, number) if isinstance(one, AskGrants)]
    actions = answer(core, Granted(f"t/r{number}/0", ask.worker.key), GrantsAnswered(ask.worker.key))
    (settle,) = [one for one in actions if isinstance(one, Settle)]
    settled = SettleAnswered(settle.request_key, settle.prefill_key, settle.decoder.key, Settled.OK)
    (send,) = [one for one in answer(core, settled) if isinstance(one, SendDecode)]
    return send.worker_key, send.spec.handle


def answer(core: RouterCore, *events: Event) -> list[Action]:
    return [action for event in events for action in core.on(event, 1.0)]


def test_where_nothing_is_promised_everyone_is_taken_and_told_what_was_predicted() -> None:
    told = [one for one in arrive(core_of("chunked"), 1) if isinstance(one, TellAccepted | Reject)]
    assert [type(one) for one in told] == [TellAccepted]
    assert isinstance(told[0], TellAccepted)
    assert told[0].promise.at_risk
    assert told[0].promise.predicted_ttft_ms > 1
    assert any(isinstance(one, Reject) for one in arrive(core_of("slack"), 1))


@pytest.mark.parametrize(("policy", "rank"), [("chunked", (0, 0)), ("slack", (3, 1))])
def test_the_queue_is_ordered_by_arrival_or_by_due_time(policy: str, rank: tuple[int, int]) -> None:
    (asked,) = [one for one in arrive(core_of(policy), 1) if isinstance(one, Enqueue)]
    assert (asked.entry.slo_class, asked.entry.due_in_ms) == rank


def test_what_is_bound_at_arrival_goes_to_the_worker_with_the_least_work_however_full() -> None:
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
    (relayed,) = [one for one in actions if isinstance(one, RelayRun)]
    assert (relayed.first_index, len(relayed.token_ids), relayed.finish) == (1, 49, FinishReason.LENGTH)
    assert relayed.max_gap_s == pytest.approx(0.1)
    session = core.book.find("t", "r1")
    assert session is not None
    assert session.ended
    assert session.tpot_s() == pytest.approx(0.1)


def test_a_run_that_leaves_a_gap_is_a_failed_attempt() -> None:
    core = core_of("chunked")
    worker_key, handle = start(core, 1)
    run = TokenRun(handle, 0, 1, [9, 9])
    actions = core.on(StepReported(worker_key, TokenColumns(), WorkerLoad(), runs=(run,)), 2.0)
    assert any(isinstance(one, Enqueue) for one in actions)
