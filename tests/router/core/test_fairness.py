"""At a busy fleet's door short prompts leave room for long ones, and tenants for those that had less."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from router.core.core import RouterCore
from router.core.model.actions import ChargeTenant
from router.core.model.events import StepReported, WorkerLoad
from scheduling.admission.admission import Verdict
from scheduling.admission.learnt import LOAD_WINDOW_S
from scheduling.admission.shares import BAND_S
from scheduling.columns import TokenColumns
from scheduling.cost_model import CostModel
from scheduling.prediction import QueueAhead, RequestCost
from scheduling.request import Slo, SloClass
from tests.router.core.asking import ask
from tests.router.core_driver import ONE, TWO, core_of, judged, tell

COST = CostModel((0.0, 0.0, 0.001, 0.0, 0.0, 0.0), 0.0)
"""A millisecond for each token: two workers compute 2000 of them in a second."""
SLO = Slo(ttft_ms=650)
SHORT, LONG = 20, 200


def core_of_late(load: float, slo_class: SloClass = SloClass.STANDARD) -> RouterCore:
    """So much was admitted of late, by what two workers compute; of the long ones little."""
    core = core_of("slack", cost=COST)
    busy = WorkerLoad(running=1, pending_prefill_tokens=100, free_blocks=64, context_tokens=8)
    for facts in (ONE, TWO):
        tell(core, StepReported(facts.key, TokenColumns(), busy))
    core.state.learnt.by_class.admitted(slo_class, round(load * 2000 * LOAD_WINDOW_S), 1.0)
    for turn in range(100):
        core.state.learnt.by_length[slo_class].decided(SHORT, 1.0, admitted=True)
        core.state.learnt.by_length[slo_class].decided(LONG, 1.0, admitted=turn < 10)
    return core


def verdict(core: RouterCore, tokens: int, ahead: int, slo: Slo = SLO) -> Verdict:
    """Return what a newcomer of this length would be told behind so many tokens in the queue."""
    asked = RequestCost(prompt_tokens=tokens, cached_tokens=0, blocks=2, num_seqs=1)
    return judged(core, asked, slo, QueueAhead(ahead, 1), 1.0).decision.verdict


def test_a_short_prompt_is_refused_the_room_of_a_long_one() -> None:
    assert verdict(core_of_late(load=0.1), SHORT, 200) is Verdict.ACCEPTED
    assert verdict(core_of_late(load=0.9), SHORT, 200) is Verdict.REFUSED


def test_a_short_prompt_is_accepted_where_a_long_one_fits_as_well() -> None:
    assert verdict(core_of_late(load=0.9), SHORT, 0) is Verdict.ACCEPTED


def test_a_long_prompt_is_judged_as_it_is() -> None:
    for ahead in (0, 100, 200):
        assert verdict(core_of_late(0.9), LONG, ahead) is verdict(core_of_late(0.1), LONG, ahead)


def test_lengths_of_one_class_hold_nobody_of_another_back() -> None:
    assert verdict(core_of_late(0.9, SloClass.BATCH), SHORT, 200) is Verdict.ACCEPTED


def test_who_states_no_first_token_is_not_held_back() -> None:
    assert verdict(core_of_late(0.9), SHORT, 200, Slo(tpot_ms=1000)) is Verdict.ACCEPTED


def test_what_is_decided_is_learnt_by_length() -> None:
    core = core_of_late(0.9)
    lengths = core.state.learnt.by_length[SloClass.STANDARD]
    ask(core, 1, SHORT, SLO, 0)
    ask(core, 2, SHORT, SLO, 900)
    assert len(lengths) == 202


def test_a_prompt_late_even_on_an_idle_fleet_is_not_counted() -> None:
    core = core_of_late(0.9)
    ask(core, 1, SHORT, replace(SLO, ttft_ms=1), 0)
    assert len(core.state.learnt.by_length[SloClass.STANDARD]) == 200


def lead(ahead: int, slo: Slo) -> float:
    """Seconds of the fleet's work that a newcomer's tenant may be ahead by, behind so many tokens."""
    core = core_of("slack", cost=COST)
    rate = core.state.capacity.prefill_rate(None, core.state.now)
    (charged,) = [action for action in ask(core, 1, SHORT, slo, ahead) if isinstance(action, ChargeTenant)]
    assert charged.band == BAND_S * rate
    return charged.lead / rate


def test_the_longer_the_queue_the_less_a_tenant_may_be_ahead() -> None:
    assert [lead(ahead, Slo()) for ahead in (1000, 2000, 3000, 4000, 9000)] == pytest.approx(
        [math.inf, math.inf, BAND_S / 2, 0, 0]
    )


def test_a_queue_is_long_by_what_a_request_can_wait() -> None:
    soon = Slo(ttft_ms=1000)
    assert [lead(ahead, soon) for ahead in (200, 250, 500, 750)] == pytest.approx(
        [math.inf, math.inf, BAND_S / 2, 0]
    )
