"""A promise counts what the worker it will go to has cached, and no more than any that may take it has."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.actions import AskGrants, Reject, TellAccepted
from router.core.admission.judge import cached_everywhere, cached_tokens
from router.core.capacity.worker_facts import WorkerLoad
from router.core.core import RouterCore
from router.core.events import StepReported
from scheduling.admission.prediction import QueueAhead, RequestCost
from scheduling.columns import TokenColumns
from scheduling.cost.cost_model import CostModel
from scheduling.placement import Placement
from scheduling.request import Slo
from tests.router.core_driver import ARRIVAL, ONE, TWO, arrive, core_of, judged, tell

COST = CostModel((0.0, 0.0, 0.001, 0.0, 0.0, 0.0), 0.0)
"""A millisecond for each token."""
PROMPT = 48
ALONE = QueueAhead(0, 0)
HITS = {ONE.key: 8}
BLOCK = ONE.block_size
FULL = WorkerLoad(pending_prefill_tokens=10_000, free_blocks=64)


def core_with(placement: Placement = Placement.AGGREGATED) -> RouterCore:
    return core_of("slack", cost=COST, placement=placement)


def predicted_ms(core: RouterCore, hits: dict[str, int], ahead: QueueAhead = ALONE) -> float:
    return judged(core, RequestCost(PROMPT, 0, 12, 1), Slo(), ahead, 1.0, hits).predicted.ttft_s * 1000


def test_an_idle_fleet_promises_what_the_holder_of_the_prefix_takes() -> None:
    core = core_with()
    assert predicted_ms(core, HITS) == pytest.approx(predicted_ms(core, {}) - 8 * BLOCK)
    tight = replace(ARRIVAL, prompt_token_ids=range(PROMPT), slo=Slo(ttft_ms=PROMPT - 8 * BLOCK + 1))
    assert any(isinstance(action, Reject) for action in arrive(core_with(), 1, tight))
    told = arrive(core, 1, replace(tight, prefix_hits=HITS))
    assert any(isinstance(action, TellAccepted) for action in told)
    # And it is that worker alone that the prompt is offered to.
    assert [action.worker.key for action in told if isinstance(action, AskGrants)] == [ONE.key]


def test_a_holder_that_is_not_free_does_not_count() -> None:
    core = core_with()
    tell(core, StepReported(ONE.key, TokenColumns(), FULL))
    without = core_with()
    tell(without, StepReported(ONE.key, TokenColumns(), FULL))
    assert predicted_ms(core, HITS) == pytest.approx(predicted_ms(without, {}))


@pytest.mark.parametrize(
    ("hits", "ahead", "placement"),
    [
        (HITS, QueueAhead(10, 1), Placement.AGGREGATED),
        (HITS, QueueAhead(0, 0), Placement.CONDITIONAL),
    ],
)
def test_if_any_worker_may_take_it_only_common_blocks_count(
    hits: dict[str, int], ahead: QueueAhead, placement: Placement
) -> None:
    core = core_with(placement)
    assert predicted_ms(core, hits, ahead) == pytest.approx(predicted_ms(core, {}, ahead))
    both = {ONE.key: 8, TWO.key: 5}
    assert cached_everywhere(core.state, both) == 5 * BLOCK
    assert predicted_ms(core, both, ahead) == pytest.approx(predicted_ms(core, {}, ahead) - 5 * BLOCK)


def test_with_as_many_waiting_as_free_any_worker_may_take_it() -> None:
    core = core_with()
    for number in (1, 2):
        arrive(core, number)
    for worker in core.state.fleet.workers.values():
        worker.asking = False
    found = cached_tokens(core.state, HITS, QueueAhead(0, 0))
    assert found == {ONE.key: 0, TWO.key: 0}


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 60), st.integers(0, 60), st.integers(0, 2))
def test_a_known_prefix_promises_no_sooner_than_its_holders(
    one: int, two: int, bound_one: int, bound_two: int, ahead: int
) -> None:
    core, hits = core_with(), {ONE.key: one, TWO.key: two}
    for facts, bound in ((ONE, bound_one), (TWO, bound_two)):
        load = WorkerLoad(pending_prefill_tokens=bound, free_blocks=64)
        tell(core, StepReported(facts.key, TokenColumns(), load))
    before = QueueAhead(20 * ahead, ahead)
    found = predicted_ms(core, hits, before)
    assert found <= predicted_ms(core, {}, before) + 1e-6
    most = {key: max(one, two) for key in hits}
    assert found >= predicted_ms(core, most, before) - 1e-6
