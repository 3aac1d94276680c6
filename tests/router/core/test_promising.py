"""Ratios learnt under load do not shut an idle fleet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.core import RouterCore
from router.core.model.actions import AskGrants, Reject, TellAccepted
from router.core.model.events import Enqueued, StepReported, WorkerFacts, WorkerJoined, WorkerLoad
from router.core.model.state import CoreConfig
from router.errors import Refused
from scheduling.admission.admission import Verdict
from scheduling.columns import TokenColumns
from scheduling.cost_model import CostModel
from scheduling.prediction import QueueAhead, RequestCost
from scheduling.request import FinishReason, Slo, StopRules
from tests.router.core_driver import ARRIVAL, COST, call, core_of, grant, judged, tell

ASK = RequestCost(prompt_tokens=100, cached_tokens=0, blocks=10, num_seqs=1)
SLO = Slo(ttft_ms=100, tpot_ms=20)


def core_after_a_bad_minute(load: WorkerLoad, cost: CostModel = COST) -> RouterCore:
    """Ten milliseconds a step as predicted; of late everything took ten times as long."""
    core = RouterCore(CoreConfig(router_id="router-a"))
    facts = WorkerFacts("d", "1", "decode", "127.0.0.1:1", "f", 16, 1000, 64, 256)
    core.on(WorkerJoined(facts, load, cost), 0.0)
    for _ in range(64):
        core.state.learnt.ttft.add(0, 10.0, now=1.0)
        core.state.learnt.tpot.add(0, 10.0, now=1.0)
    return core


def test_an_idle_fleet_is_judged_by_the_prediction_alone() -> None:
    core = core_after_a_bad_minute(WorkerLoad())
    assert judged(core, ASK, SLO, QueueAhead(0, 0), 1.0).decision.verdict is Verdict.ACCEPTED


def test_a_busy_fleet_is_judged_by_what_was_learnt() -> None:
    busy = WorkerLoad(running=4, context_tokens=400)
    assert (
        judged(core_after_a_bad_minute(busy), ASK, SLO, QueueAhead(0, 0), 1.0).decision.verdict
        is Verdict.REFUSED
    )


@given(st.integers(20, 500), st.floats(0.001, 0.015))
def test_no_rounding_refuses_a_pace_that_steps_are_cut_to(tpot_ms: int, step_s: float) -> None:
    cost = CostModel((step_s, 0.0, 0.0, 0.0, 0.0, 0.0), 0.0)
    core = core_after_a_bad_minute(WorkerLoad(running=4, context_tokens=400), cost)
    decision = judged(core, ASK, Slo(tpot_ms=tpot_ms), QueueAhead(0, 0), 1.0).decision
    assert decision.verdict is Verdict.ACCEPTED
    assert decision.attainable_tpot_ms <= tpot_ms


def test_with_others_in_the_queue_it_is_not_idle() -> None:
    core = core_after_a_bad_minute(WorkerLoad())
    ahead = QueueAhead(tokens=10, requests=1)
    assert judged(core, ASK, SLO, ahead, 1.0).decision.verdict is Verdict.REFUSED


def first_tokens(core: RouterCore, prompt: int, took_s: float, count: int, first: int) -> None:
    """Requests one after the other, each on an idle fleet, whose first token comes after so long."""
    for number in range(first, first + count):
        at = float(10 + number)
        event = call(ARRIVAL, prompt_token_ids=range(prompt), stop=StopRules(max_tokens=1), received_at=at)
        tell(core, call(event, listener=number, request_id=f"r{number}"), now=at)
        asks = [
            action
            for action in tell(core, Enqueued(f"t/r{number}/0", 0, 0), now=at)
            if isinstance(action, AskGrants)
        ]
        (send,) = grant(core, number, asks[0].worker.key, now=at)
        last = TokenColumns([send.spec.handle], [0], [0], [9], [int(FinishReason.LENGTH)])
        tell(core, StepReported(send.worker_key, last, WorkerLoad(free_blocks=64), 0.01), now=at + took_s)


def test_idle_overhead_is_added_and_not_taken_for_load() -> None:
    # A millisecond for each token, and always seven besides.
    core = core_of("slack", cost=CostModel((0.0, 0.0, 0.001, 0.0, 0.0, 0.0), 0.0))
    bare = judged(core, RequestCost(20, 0, 5, 1), Slo(), QueueAhead(0, 0), 10.0).decision.ttft_s
    assert bare == pytest.approx(0.020)
    first_tokens(core, 20, 0.027, 8, first=1)
    for prompt in (20, 40):
        quoted = judged(core, RequestCost(prompt, 0, 5, 1), Slo(ttft_ms=prompt + 8), QueueAhead(0, 0), 20.0)
        assert quoted.decision.verdict is Verdict.ACCEPTED
        assert quoted.predicted.ttft_s == pytest.approx(prompt / 1000 + 0.007)
        assert quoted.predicted.fixed_s == pytest.approx(0.007)
    # What comes after is predicted exactly: nothing is left to multiply by.
    first_tokens(core, 40, 0.047, 64, first=9)
    assert core.state.learnt.ttft_quantiles(0.047, core.state.now) == pytest.approx((1.0, 1.0))


@pytest.mark.parametrize(("waited_s", "is_kept"), [(0.0, True), (0.07, True), (0.09, False), (3.0, False)])
def test_what_tokenising_took_counts_as_it_is(waited_s: float, is_kept: bool) -> None:
    core = core_of("slack", cost=CostModel((0.0, 0.0, 0.001, 0.0, 0.0, 0.0), 0.0))
    event = call(ARRIVAL, request_id="r", prompt_token_ids=range(20), slo=SLO, received_at=10.0)
    at = 10.0 + waited_s
    tell(core, event, now=at)
    told = tell(core, Enqueued("t/r/0", 0, 0), now=at)
    if is_kept:
        [accepted] = [action for action in told if isinstance(action, TellAccepted)]
        assert accepted.promise.predicted_ttft_ms == pytest.approx(1000 * waited_s + 20)
    else:
        [refused] = [action.error for action in told if isinstance(action, Reject)]
        assert isinstance(refused, Refused)
        assert refused.decision.attainable_ttft_ms == pytest.approx(1000 * waited_s + 20, abs=1)


def test_a_wait_for_the_tokenizer_is_not_learnt_as_idle_overhead() -> None:
    core = core_of("slack", cost=CostModel((0.0, 0.0, 0.001, 0.0, 0.0, 0.0), 0.0))
    for number in range(1, 9):
        at = float(10 + number)
        event = call(ARRIVAL, prompt_token_ids=range(20), stop=StopRules(max_tokens=1), received_at=at - 3)
        tell(core, call(event, listener=number, request_id=f"r{number}"), now=at)
        told = tell(core, Enqueued(f"t/r{number}/0", 0, 0), now=at)
        [asks] = [action for action in told if isinstance(action, AskGrants)]
        (send,) = grant(core, number, asks.worker.key, now=at)
        last = TokenColumns([send.spec.handle], [0], [0], [9], [int(FinishReason.LENGTH)])
        tell(core, StepReported(send.worker_key, last, WorkerLoad(free_blocks=64), 0.01), now=at + 0.027)
    quoted = judged(core, RequestCost(20, 0, 5, 1), Slo(ttft_ms=30), QueueAhead(0, 0), 20.0)
    assert quoted.decision.verdict is Verdict.ACCEPTED
    assert quoted.predicted.fixed_s == pytest.approx(0.007)
