"""What was learnt under load must not shut an idle fleet."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.book import CoreConfig
from router.core import RouterCore
from router.events import WorkerJoined
from router.fleet import WorkerFacts, WorkerLoad
from scheduling.admission import Verdict
from scheduling.cost_model import CostModel
from scheduling.prediction import Ahead, Ask
from scheduling.request import Slo

COST = CostModel((0.01, 0.0, 0.0, 0.0, 0.0, 0.0), 0.0)
ASK = Ask(prompt_tokens=100, cached_tokens=0, blocks=10, num_seqs=1)
SLO = Slo(ttft_ms=100, tpot_ms=20)


def core_after_a_bad_minute(load: WorkerLoad, cost: CostModel = COST) -> RouterCore:
    """Ten milliseconds a step as predicted; of late everything took ten times as long."""
    core = RouterCore(CoreConfig(router_id="router-a"))
    facts = WorkerFacts("d", "1", "decode", "127.0.0.1:1", "f", 16, 1000, 64, 256)
    core.on(WorkerJoined(facts, load, cost), 0.0)
    for _ in range(64):
        core.book.learnt.ttft.add(0, 10.0, now=1.0)
        core.book.learnt.tpot.add(0, 10.0, now=1.0)
    return core


def test_an_idle_fleet_is_judged_by_the_prediction_alone() -> None:
    core = core_after_a_bad_minute(WorkerLoad())
    assert core.quote(ASK, SLO, Ahead(0, 0), 1.0).decision.verdict is Verdict.ACCEPTED


def test_a_busy_fleet_is_judged_by_what_was_learnt() -> None:
    busy = WorkerLoad(running=4, context_tokens=400)
    assert core_after_a_bad_minute(busy).quote(ASK, SLO, Ahead(0, 0), 1.0).decision.verdict is Verdict.REFUSED


@given(st.integers(20, 500), st.floats(0.001, 0.015))
def test_no_rounding_refuses_a_pace_that_steps_are_cut_to(tpot_ms: int, step_s: float) -> None:
    cost = CostModel((step_s, 0.0, 0.0, 0.0, 0.0, 0.0), 0.0)
    core = core_after_a_bad_minute(WorkerLoad(running=4, context_tokens=400), cost)
    decision = core.quote(ASK, Slo(tpot_ms=tpot_ms), Ahead(0, 0), 1.0).decision
    assert decision.verdict is Verdict.ACCEPTED
    assert decision.attainable_tpot_ms <= tpot_ms


def test_with_others_in_the_queue_it_is_not_idle() -> None:
    core = core_after_a_bad_minute(WorkerLoad())
    ahead = Ahead(tokens=10, requests=1)
    assert core.quote(ASK, SLO, ahead, 1.0).decision.verdict is Verdict.REFUSED
