"""An SLO that no idle fleet could meet is told apart from one that this fleet cannot meet now."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.core import RouterCore
from router.core.model.actions import Reject, TellAccepted
from router.core.model.events import StepReported, WorkerLoad
from router.errors import Reason, Refused, ValidationError
from scheduling.admission.admission import below_floor
from scheduling.columns import TokenColumns
from scheduling.cost_model import UNKNOWN_COST, CostModel, quickest
from scheduling.prediction import (
    DecodeView,
    PrefillView,
    QueueAhead,
    RequestCost,
    SloFloor,
    capacity_of,
    decode_speed,
    predict,
    prefill_speed,
    slo_floor,
)
from scheduling.request import Slo
from tests.router.core_driver import ARRIVAL, COST, ONE, TWO, arrive, call, core_of, judged, tell

MS = st.none() | st.integers(1, 5000)
SLOS = st.builds(Slo, ttft_ms=MS, tpot_ms=MS, itl_ms=MS)
RATES = st.floats(0.0, 1e-3)
COSTS = st.builds(
    lambda a0, c1, c3, c4, c5, q10: CostModel((a0, c1, c3, c4, c5, 0.0), 32.0, q10, 1.0, 1.3),
    st.floats(1e-3, 0.1), RATES, RATES, st.floats(0.0, 1e-5), st.floats(0.0, 1e-6), st.floats(0.5, 1.0),
)  # fmt: skip
WORKERS = st.lists(st.tuples(COSTS, st.integers(64, 4096)), min_size=1, max_size=3)


def asks(prompt: int, cached: int = 0) -> RequestCost:
    return RequestCost(prompt, cached, 1, 1)


def least_of(prompt: int, workers: list[tuple[CostModel, int]], cached: int = 0) -> SloFloor:
    """Return the least time for a prompt on aggregated workers with these costs and token budgets."""
    known = [(quickest((), cost, budget), budget) for cost, budget in workers]
    return slo_floor(asks(prompt, cached), known, [costs for costs, _ in known])


@given(SLOS, WORKERS, st.integers(1, 3000))
def test_the_first_field_below_the_least_is_named_with_what_would_do(
    slo: Slo, workers: list[tuple[CostModel, int]], prompt: int
) -> None:
    least = least_of(prompt, workers)
    found = below_floor(slo, least)
    limits = {
        "slo.ttft_ms": (slo.ttft_ms, least.ttft_s),
        "slo.tpot_ms": (slo.tpot_ms, least.step_s),
        "slo.itl_ms": (slo.itl_ms, least.step_s),
    }
    below = [name for name, (ms, seconds) in limits.items() if ms is not None and ms < seconds * 1000]
    assert (found.field if found else None) == (below[0] if below else None)
    if found is not None:
        seconds = limits[found.field][1]
        assert (found.least_ms - 1) / 1000 < seconds <= found.least_ms / 1000 * (1 + 1e-12)


@given(WORKERS, st.integers(1, 3000))
def test_nothing_that_an_idle_worker_meets_is_impossible(
    workers: list[tuple[CostModel, int]], prompt: int
) -> None:
    least = least_of(prompt, workers)
    prefill = [PrefillView(cost, room) for cost, room in workers]
    decode = [DecodeView(cost, 0, 0, 8, 1000, 1.0, 0.0) for cost, _ in workers]
    capacity = capacity_of(
        [prefill_speed(entry) for entry in prefill], [decode_speed(entry) for entry in decode]
    )
    predicted = predict(asks(prompt), QueueAhead(0, 0), capacity)
    assert least.ttft_s <= predicted.ttft_s * (1 + 1e-9)


@given(WORKERS, COSTS, st.integers(2, 3000), st.integers(1, 3000))
def test_more_workers_or_cached_prefixes_make_nothing_impossible(
    workers: list[tuple[CostModel, int]], another: CostModel, prompt: int, cached: int
) -> None:
    least = least_of(prompt, workers)
    more = least_of(prompt, [*workers, (another, 512)])
    assert more.ttft_s <= least.ttft_s
    assert more.step_s <= least.step_s
    assert least_of(prompt, workers, cached).ttft_s <= least.ttft_s * (1 + 1e-9)


def test_nothing_is_impossible_while_a_worker_has_measured_nothing() -> None:
    least = least_of(100, [(COST, 64), (UNKNOWN_COST, 64)])
    assert below_floor(Slo(ttft_ms=1, tpot_ms=1, itl_ms=1), least) is None


@given(st.lists(COSTS, min_size=1, max_size=8), st.integers(64, 4096), st.integers(1, 3000))
def test_the_limit_only_falls_and_not_below_the_quickest_costs(
    costs: list[CostModel], budget: int, prompt: int
) -> None:
    known: tuple[CostModel, ...] = ()
    limits = []
    for cost in costs:
        known = quickest(known, cost, budget)
        least = slo_floor(asks(prompt), [(known, budget)], [known])
        alone = [least_of(prompt, [(entry, budget)]) for entry in costs]
        assert least.ttft_s >= min(answer.ttft_s for answer in alone)
        assert least.step_s >= min(answer.step_s for answer in alone)
        full = slo_floor(asks(budget), [(known, budget)], [known])
        limits.append((full.ttft_s, slo_floor(asks(1), [(known, budget)], [known]).step_s))
    assert all(late[0] <= soon[0] * (1 + 1e-9) for soon, late in pairwise(limits))
    assert all(late[1] <= soon[1] * (1 + 1e-9) for soon, late in pairwise(limits))
    assert len(known) <= 2


IMPOSSIBLE = Slo(ttft_ms=1, tpot_ms=1, itl_ms=1, allow_at_risk=True)


def told(core: RouterCore, slo: Slo) -> list[object]:
    actions = arrive(core, 1, call(ARRIVAL, slo=slo))
    return [action.error if isinstance(action, Reject) else action for action in actions]


@given(st.lists(st.tuples(st.sampled_from([1.0, 1.3, 4.0]), st.booleans()), max_size=12))
def test_trust_in_costs_does_not_change_the_impossible_answer(
    spells: list[tuple[float, bool]],
) -> None:
    core = core_of("slack")
    for number, (slow_by, is_trusted) in enumerate([(1.0, True), *spells]):
        cost = replace(COST, coefficients=tuple(coefficient * slow_by for coefficient in COST.coefficients))
        for facts in (ONE, TWO):
            told_cost = replace(cost, is_trusted=is_trusted)
            tell(core, StepReported(facts.key, TokenColumns(), WorkerLoad(free_blocks=64), cost=told_cost))
        event = call(ARRIVAL, slo=Slo(ttft_ms=1))
        (error,) = [action.error for action in arrive(core, number, event) if isinstance(action, Reject)]
        assert isinstance(error, ValidationError)
        assert error.reason is Reason.SLO_IMPOSSIBLE
        assert "slo.ttft_ms is 1; accepted: 10 or more" in str(error)


def test_an_slo_that_is_impossible_is_taken_where_late_is_allowed() -> None:
    (taken,) = [action for action in told(core_of("slack"), IMPOSSIBLE) if isinstance(action, TellAccepted)]
    assert taken.promise.at_risk
    assert taken.promise.ttft_ms == 1
    assert taken.promise.predicted_ttft_ms >= 10


@pytest.mark.parametrize(
    ("field", "slo"),
    [
        ("slo.ttft_ms", Slo(ttft_ms=9)),
        ("slo.tpot_ms", Slo(ttft_ms=1000, tpot_ms=9)),
        ("slo.itl_ms", Slo(itl_ms=1)),
    ],
)
def test_a_router_names_field_value_and_range_whatever_it_has_to_do(field: str, slo: Slo) -> None:
    busy = core_of("slack")
    tell(busy, StepReported(ONE.key, TokenColumns(), WorkerLoad(running=4, free_blocks=64)))
    for core in (core_of("slack"), busy):
        (error,) = [action for action in told(core, slo) if isinstance(action, Exception)]
        assert isinstance(error, ValidationError)
        assert error.fields[0] == field
        assert re.search(r"is [19]; accepted: 10 or more, or unset", str(error))
        with pytest.raises(ValidationError, match=field):
            judged(core, asks(6), slo, QueueAhead(0, 0), 1.0)


def test_load_makes_a_refusal_and_never_an_impossibility() -> None:
    idle, busy = core_of("slack"), core_of("slack")
    load = WorkerLoad(running=4, waiting=9, pending_prefill_tokens=5000, free_blocks=64)
    tell(busy, *(StepReported(facts.key, TokenColumns(), load) for facts in (ONE, TWO)))
    assert any(isinstance(action, TellAccepted) for action in told(idle, Slo(ttft_ms=10)))
    assert any(isinstance(action, Refused) for action in told(busy, Slo(ttft_ms=10)))


def test_who_promises_nothing_turns_nothing_away() -> None:
    assert any(isinstance(action, TellAccepted) for action in told(core_of("chunked"), Slo(ttft_ms=1)))
