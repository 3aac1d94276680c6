"""What no idle fleet could meet is told apart from what this one cannot meet now."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.actions import Reject, TellAccepted
from router.core import RouterCore
from router.errors import SloRefused, ValidationError
from router.events import StepReported
from router.fleet import WorkerLoad
from router.impossible import bare, impossible
from scheduling.columns import TokenColumns
from scheduling.cost_model import UNKNOWN_COST, CostModel
from scheduling.prediction import (
    Ahead,
    Ask,
    DecodeView,
    PrefillView,
    capacity_of,
    decode_speed,
    predict,
    prefill_speed,
)
from scheduling.request import MAX_SLO_MS, Slo
from tests.router.core_driver import ARRIVAL, COST, ONE, TWO, arrive, core_of, judged, tell

MS = st.none() | st.integers(1, 5000)
SLOS = st.builds(Slo, ttft_ms=MS, tpot_ms=MS, itl_ms=MS)
RATES = st.floats(0.0, 1e-3)
COSTS = st.builds(
    lambda a0, c1, c3, c4, c5, q10: CostModel((a0, c1, c3, c4, c5, 0.0), 32.0, q10, 1.0, 1.3),
    st.floats(1e-3, 0.1), RATES, RATES, st.floats(0.0, 1e-5), st.floats(0.0, 1e-6), st.floats(0.5, 1.0),
)  # fmt: skip
WORKERS = st.lists(st.tuples(COSTS, st.integers(64, 4096)), min_size=1, max_size=3)


def asks(prompt: int, cached: int = 0) -> Ask:
    return Ask(prompt, cached, 1, 1)


@given(SLOS, WORKERS, st.integers(1, 3000))
def test_the_first_field_below_the_least_is_named_with_what_would_do(
    slo: Slo, workers: list[tuple[CostModel, int]], prompt: int
) -> None:
    least = bare(asks(prompt), workers, [cost for cost, _ in workers])
    found = impossible(slo, least)
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
def test_nothing_that_an_idle_worker_is_predicted_to_meet_is_impossible(
    workers: list[tuple[CostModel, int]], prompt: int
) -> None:
    least = bare(asks(prompt), workers, [cost for cost, _ in workers])
    prefill = [PrefillView(cost, room) for cost, room in workers]
    decode = [DecodeView(cost, 0, 0, 8, 1000, 1.0, 0.0) for cost, _ in workers]
    capacity = capacity_of([prefill_speed(one) for one in prefill], [decode_speed(one) for one in decode])
    predicted = predict(asks(prompt), Ahead(0, 0), capacity)
    assert least.ttft_s <= predicted.ttft_s * (1 + 1e-9)


@given(WORKERS, COSTS, st.integers(2, 3000), st.integers(1, 3000))
def test_neither_another_worker_nor_a_cached_prefix_makes_more_impossible(
    workers: list[tuple[CostModel, int]], another: CostModel, prompt: int, cached: int
) -> None:
    costs = [cost for cost, _ in workers]
    least = bare(asks(prompt), workers, costs)
    more = bare(asks(prompt), [*workers, (another, 512)], [*costs, another])
    assert more.ttft_s <= least.ttft_s
    assert more.step_s <= least.step_s
    assert bare(asks(prompt, cached), workers, costs).ttft_s <= least.ttft_s * (1 + 1e-9)


@pytest.mark.parametrize("doubtful", [UNKNOWN_COST, replace(COST, is_trusted=False)])
def test_nothing_is_impossible_while_a_workers_costs_are_not_trusted(doubtful: CostModel) -> None:
    least = bare(asks(100), [(COST, 64), (doubtful, 64)], [COST, doubtful])
    assert impossible(Slo(ttft_ms=1, tpot_ms=1, itl_ms=1), least) is None


def told(core: RouterCore, slo: Slo) -> list[object]:
    actions = arrive(core, 1, replace(ARRIVAL, slo=slo))
    return [one.error if isinstance(one, Reject) else one for one in actions]


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
        (error,) = [one for one in told(core, slo) if isinstance(one, Exception)]
        assert isinstance(error, ValidationError)
        assert error.field == field
        assert re.search(rf"is [19]; accepted: 10 to {MAX_SLO_MS}", str(error))
        with pytest.raises(ValidationError, match=field):
            judged(core, asks(6), slo, Ahead(0, 0), 1.0)


def test_load_makes_a_refusal_and_never_an_impossibility() -> None:
    idle, busy = core_of("slack"), core_of("slack")
    load = WorkerLoad(running=4, waiting=9, pending_prefill_tokens=5000, free_blocks=64)
    tell(busy, *(StepReported(facts.key, TokenColumns(), load) for facts in (ONE, TWO)))
    assert any(isinstance(one, TellAccepted) for one in told(idle, Slo(ttft_ms=10)))
    assert any(isinstance(one, SloRefused) for one in told(busy, Slo(ttft_ms=10)))


def test_who_promises_nothing_turns_nothing_away() -> None:
    assert any(isinstance(one, TellAccepted) for one in told(core_of("chunked"), Slo(ttft_ms=1)))
