"""Adapters that workers load when requests come: placed where that costs least, and counted in promises."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.core.core import RouterCore
from router.core.model.actions import (
    AskGrants,
    Enqueue,
    Reject,
    SendDecode,
    SendReceive,
    Settle,
    TellAccepted,
)
from router.core.model.events import (
    AdaptersChanged,
    Granted,
    SettleAnswered,
    Timer,
    TimerFired,
    TimerKind,
    WorkerFacts,
    WorkerJoined,
    WorkerLoad,
)
from router.errors import Reason, Refused
from runtime.state.records import Settled
from scheduling.cost_model import CostModel
from scheduling.placement import Placement
from scheduling.request import Slo
from tests.router.core_driver import ARRIVAL, COST, ONE, TWO, arrive, call, core_of, tell

RED, BLUE = "1" * 32, "2" * 32
KEY = "t/r1/0"
WANTS_RED = call(ARRIVAL, adapter=RED)
PREFILL = replace(ONE, worker_id="p1", role="prefill", address="p1:1")
STEP_S = 0.01
"""The time of any step; a prompt is computed in one."""


def core_with(
    *adapters: tuple[WorkerFacts, dict[str, float]], placement: Placement = Placement.AGGREGATED
) -> RouterCore:
    """Each worker has these adapters, and takes so long to load them; 0: they are in its memory."""
    core = core_of("slack", *(facts for facts, _ in adapters), placement=placement)
    for facts, load_s in adapters:
        loads = {digest: seconds for digest, seconds in load_s.items() if seconds}
        tell(core, AdaptersChanged(facts.key, tuple(sorted(load_s)), loads))
    return core


def offered(core: RouterCore) -> list[str]:
    return [action.worker.key for action in arrive(core, 1, WANTS_RED) if isinstance(action, AskGrants)]


def predicted_ms(core: RouterCore, slo: Slo) -> float:
    found = arrive(core, 1, call(WANTS_RED, slo=slo))
    (accepted,) = [action for action in found if isinstance(action, TellAccepted)]
    assert accepted.promise.predicted_ttft_ms is not None
    return accepted.promise.predicted_ttft_ms


@pytest.mark.parametrize("loaded", [ONE, TWO])
def test_the_worker_that_has_it_in_memory_is_offered(loaded: WorkerFacts) -> None:
    core = core_with(*((facts, {RED: 0.0 if facts is loaded else 0.5}) for facts in (ONE, TWO)))
    assert offered(core) == [loaded.key]


def test_if_all_have_to_load_it_the_quickest_is_offered() -> None:
    assert offered(core_with((ONE, {RED: 0.9}), (TWO, {RED: 0.3}))) == [TWO.key]


@pytest.mark.parametrize(("tokens", "least_ms", "most_ms"), [(64, 0, 100), (64 * 100, 200, 400)])
def test_a_queue_longer_than_loading_outweighs_having_it(tokens: int, least_ms: int, most_ms: int) -> None:
    """The first worker loads for 200 ms; the second one has the adapter, and 10 or 1000 ms of prompts."""
    core = core_with((ONE, {RED: 0.2}), (TWO, {RED: 0.0}), placement=Placement.CONDITIONAL)
    busy = WorkerLoad(free_blocks=64, pending_prefill_tokens=tokens)
    core.state.fleet.learn(core.state.fleet.workers[TWO.key], busy)
    assert least_ms <= predicted_ms(core, Slo(ttft_ms=60_000)) <= most_ms


def test_a_promise_counts_the_loading() -> None:
    slo = Slo(ttft_ms=2000)
    at_once = predicted_ms(core_with((ONE, {RED: 0.0})), slo)
    after = predicted_ms(core_with((ONE, {RED: 0.5})), slo)
    assert after == pytest.approx(at_once + 500)
    assert predicted_ms(core_with((ONE, {RED: 0.5}), (TWO, {RED: 0.0})), slo) == pytest.approx(at_once)


def test_an_slo_that_loading_would_break_is_refused() -> None:
    core = core_with((ONE, {RED: 0.5}))
    found = arrive(core, 1, call(WANTS_RED, slo=Slo(ttft_ms=200)))
    (rejected,) = [action for action in found if isinstance(action, Reject)]
    assert isinstance(rejected.error, Refused)
    assert (rejected.error.decision.attainable_ttft_ms or 0) >= 500


def test_workers_without_the_adapter_count_for_no_promise() -> None:
    """The idle one cannot take the request."""
    core = core_with((ONE, {RED: 0.0}), (TWO, {}))
    core.state.fleet.learn(
        core.state.fleet.workers[ONE.key], WorkerLoad(free_blocks=64, pending_prefill_tokens=6400)
    )
    assert predicted_ms(core, Slo(ttft_ms=60_000)) >= 1000 * STEP_S * 6400 / ONE.token_budget


def test_a_handoff_goes_where_the_adapter_is_in_memory() -> None:
    loaded = (TWO, {RED: 0.0})
    core = core_with((PREFILL, {RED: 0.0}), (ONE, {RED: 5.0}), loaded, placement=Placement.DISAGGREGATED)
    arrive(core, 1, WANTS_RED)
    (settle,) = [
        action for action in tell(core, Granted(KEY, PREFILL.key, ONE.key)) if isinstance(action, Settle)
    ]
    assert settle.decoders[0].key == TWO.key
    sent = tell(core, SettleAnswered(KEY, PREFILL.key, TWO.key, Settled.OK))
    assert [action.worker_key for action in sent if isinstance(action, SendReceive)] == [TWO.key]


def test_an_adapter_found_later_can_be_asked_for_then() -> None:
    core = core_with((ONE, {BLUE: 0.1}))
    (rejected,) = [action for action in tell(core, WANTS_RED) if isinstance(action, Reject)]
    assert rejected.error.reason is Reason.NO_WORKER
    tell(core, AdaptersChanged(ONE.key, (RED, BLUE), {RED: 0.1, BLUE: 0.1}))
    assert offered(core) == [ONE.key]


def test_a_waiting_request_goes_to_a_worker_that_finds_its_adapter() -> None:
    core = core_with((ONE, {RED: 0.1}))
    arrive(core, 1, WANTS_RED)
    tell(core, AdaptersChanged(ONE.key, (), {}), TimerFired(Timer(TimerKind.CHORES)))
    tell(core, AdaptersChanged(ONE.key, (RED,), {RED: 0.1}))
    found = tell(core, TimerFired(Timer(TimerKind.CHORES)), now=1.2)
    assert [action.entry.adapter for action in found if isinstance(action, Enqueue)] == [RED]


def test_what_is_said_of_a_worker_that_has_left_changes_nothing() -> None:
    core = core_of("slack", ONE)
    assert tell(core, AdaptersChanged("gone:1", (RED,), {})) == []
    tell(core, WorkerJoined(TWO, WorkerLoad(free_blocks=64), COST))
    assert not core.state.fleet.workers[TWO.key].has(RED)


def test_requests_without_an_adapter_are_placed_as_before() -> None:
    plain, loading = core_of("slack", ONE, TWO), core_with((ONE, {RED: 0.5}), (TWO, {RED: 0.0}))
    assert [action.worker.key for action in arrive(plain, 1) if isinstance(action, AskGrants)] == [
        action.worker.key for action in arrive(loading, 1) if isinstance(action, AskGrants)
    ]
    cost: CostModel = loading.state.fleet.workers[ONE.key].cost
    assert cost == COST
    given = Granted(KEY, ONE.key, ONE.key)
    settled = SettleAnswered(KEY, ONE.key, ONE.key, Settled.OK)
    for core in (plain, loading):
        (sent,) = [action for action in tell(core, given, settled) if isinstance(action, SendDecode)]
        assert sent.worker_key == ONE.key
