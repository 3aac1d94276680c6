"""Promises: what is accepted, at risk or refused, and when the refused should come back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.admission.admission import (
    ITL_MARGIN,
    MAX_RETRY_S,
    MIN_RETRY_S,
    Verdict,
    aim_of,
    decide,
    meets,
    next_virtual_finish,
    rather_late,
    retry_after_s,
    unpromised,
)
from scheduling.admission.learnt import AdmittedLoad, Spread, at_most
from scheduling.prediction import Prediction
from scheduling.request import Slo

seconds = st.floats(0.001, 100.0)
spreads = st.tuples(st.floats(0.1, 1.0), st.floats(1.0, 5.0)).map(lambda pair: Spread(*pair))
predictions = st.builds(
    Prediction,
    ttft_s=seconds,
    tpot_s=seconds,
    wait_s=seconds,
    batch_size=st.integers(1, 64),
    itl_s=seconds,
)
slos = st.builds(
    Slo,
    ttft_ms=st.none() | st.integers(1, 200_000),
    tpot_ms=st.none() | st.integers(1, 200_000),
    itl_ms=st.none() | st.integers(1, 200_000),
    allow_at_risk=st.booleans(),
)

CERTAIN = Spread(1.0, 1.0)


@given(predictions, spreads, spreads, st.floats(0, 10))
def test_who_states_no_slo_is_never_refused(
    p: Prediction, ttft: Spread, tpot: Spread, yield_s: float
) -> None:
    assert decide(Slo(), p, ttft, tpot, yield_s).verdict is Verdict.ACCEPTED


@given(slos, predictions, spreads, spreads)
def test_accepted_means_the_late_quantile_meets_every_stated_slo(
    slo: Slo, p: Prediction, ttft: Spread, tpot: Spread
) -> None:
    decision = decide(slo, p, ttft, tpot)
    meets = (
        (slo.ttft_ms is None or p.ttft_s * ttft.q90 * 1000 <= slo.ttft_ms)
        and (slo.tpot_ms is None or p.tpot_s * tpot.q90 * 1000 <= slo.tpot_ms)
        and (slo.itl_ms is None or p.itl_s * 1000 / ITL_MARGIN <= slo.itl_ms)
    )
    assert (decision.verdict is Verdict.ACCEPTED) == meets
    assert decision.verdict is not Verdict.AT_RISK or slo.allow_at_risk


@given(slos, predictions, spreads, spreads)
def test_what_is_said_to_be_attainable_is_accepted(
    slo: Slo, p: Prediction, ttft: Spread, tpot: Spread
) -> None:
    decision = decide(slo, p, ttft, tpot)
    attainable = Slo(
        ttft_ms=decision.attainable_ttft_ms,
        tpot_ms=decision.attainable_tpot_ms,
        itl_ms=decision.attainable_itl_ms,
    )
    assert decide(attainable, p, ttft, tpot).verdict is Verdict.ACCEPTED


@given(slos, predictions, spreads, spreads)
def test_where_nothing_is_promised_nobody_is_refused(
    slo: Slo, p: Prediction, ttft: Spread, tpot: Spread
) -> None:
    decision = decide(slo, p, ttft, tpot)
    taken = unpromised(decision)
    assert taken.verdict is (Verdict.ACCEPTED if decision.verdict is Verdict.ACCEPTED else Verdict.AT_RISK)
    assert (taken.ttft_s, taken.tpot_s) == (decision.ttft_s, decision.tpot_s)


def test_at_risk_only_where_allowed() -> None:
    late = Prediction(ttft_s=1.0, tpot_s=0.01, wait_s=0.0, batch_size=1)
    wide = Spread(0.5, 2.0)
    assert decide(Slo(ttft_ms=800), late, wide, CERTAIN).verdict is Verdict.REFUSED
    assert decide(Slo(ttft_ms=800, allow_at_risk=True), late, wide, CERTAIN).verdict is Verdict.AT_RISK
    assert decide(Slo(ttft_ms=400, allow_at_risk=True), late, wide, CERTAIN).verdict is Verdict.REFUSED


@given(slos, predictions, spreads, spreads, st.sampled_from([0.0, 0.2]))
def test_allowing_a_late_answer_changes_only_refusals(
    slo: Slo, p: Prediction, ttft: Spread, tpot: Spread, yield_s: float
) -> None:
    decision = decide(slo, p, ttft, tpot, yield_s)
    taken = rather_late(slo, decision)
    if decision.verdict is Verdict.REFUSED and slo.allow_at_risk:
        assert taken.verdict is Verdict.AT_RISK
        assert taken.is_late
    else:
        assert taken == decision


@given(slos, predictions, spreads, spreads, st.sampled_from([0.0, 0.2]))
def test_what_is_asked_in_vain_is_not_aimed_at_and_all_else_is(
    slo: Slo, p: Prediction, ttft: Spread, tpot: Spread, yield_s: float
) -> None:
    decision = rather_late(slo, decide(slo, p, ttft, tpot, yield_s))
    aim = aim_of(slo, decision)
    if not decision.is_late:
        assert aim == slo
        return
    assert meets(aim, decision.ttft_s, decision.tpot_s, decision.itl_s)
    assert aim != slo or slo.ttft_ms is None, "something was in vain, or it would harm others"
    kept = {name for name in ("ttft_ms", "tpot_ms", "itl_ms") if getattr(aim, name) is not None}
    assert all(getattr(aim, name) == getattr(slo, name) for name in kept)
    if yield_s > 0:
        assert aim.ttft_ms is None


def test_who_would_break_the_promise_of_another_is_refused() -> None:
    soon = Prediction(ttft_s=0.1, tpot_s=0.01, wait_s=0.0, batch_size=1)
    refused = decide(Slo(ttft_ms=1000), soon, CERTAIN, CERTAIN, yield_s=0.2)
    assert refused.verdict is Verdict.REFUSED
    assert refused.attainable_ttft_ms >= 1200


@given(st.integers(1, 50), st.floats(0, 0.99), st.integers(1, 10_000), st.floats(10, 1e6))
def test_successive_refusals_are_told_successive_times(
    count: int, load: float, work: int, rate: float
) -> None:
    virtual_finish, now = 0.0, 100.0
    told = []
    for _ in range(count):
        virtual_finish = next_virtual_finish(virtual_finish, now, 0.5, work, rate=rate, load=load)
        told.append(virtual_finish)
    assert told == sorted(set(told))
    assert told[0] >= now + 0.5
    assert told[-1] == pytest.approx(now + 0.5 + count * work / (rate * max(0.05, 1 - load)))


@given(st.floats(-10, 1e6), st.text(max_size=20))
def test_retry_after_stays_in_bounds_and_is_reproducible(ahead_s: float, key: str) -> None:
    wait_s = retry_after_s(100.0 + ahead_s, 100.0, key)
    assert MIN_RETRY_S <= wait_s <= MAX_RETRY_S
    assert wait_s == retry_after_s(100.0 + ahead_s, 100.0, key)


def test_retry_after_spreads_those_refused_together() -> None:
    assert len({retry_after_s(110.0, 100.0, f"request-{i}") for i in range(20)}) > 15


def test_admitted_load_forgets_within_its_window() -> None:
    load = AdmittedLoad()
    for tenth in range(1000):
        load.add(100, tenth / 10)
    assert load.rate(100.0) == pytest.approx(1000, rel=0.02)
    assert load.rate(110.0) == pytest.approx(1000 / math.e, rel=0.02)


@given(slos, predictions, spreads, st.floats(0.1, 5.0))
def test_with_a_paced_step_rule_learning_only_refuses_less(
    slo: Slo, p: Prediction, tpot: Spread, ratio: float
) -> None:
    learnt, kept = decide(slo, p, CERTAIN, tpot), decide(slo, p, CERTAIN, at_most(tpot, ratio))
    assert kept.tpot_s <= learnt.tpot_s
    assert kept.verdict <= learnt.verdict
