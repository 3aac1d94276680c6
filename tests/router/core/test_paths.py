"""Requests take the path that serves them best, where both kinds of workers compute prompts."""

from __future__ import annotations

from dataclasses import replace

from router.core.core import RouterCore
from router.core.model.actions import AskGrants, TellAccepted
from router.core.model.events import Granted, GrantsAnswered, StepReported, WorkerFacts, WorkerLoad
from scheduling.admission.prefixes import PrefixHits
from scheduling.columns import TokenColumns
from scheduling.cost_model import CostModel, StepShape
from scheduling.placement import Placement
from scheduling.request import Slo
from tests.router.core_driver import ARRIVAL, arrive, call, core_of, tell

COST = CostModel((0.005, 0.0001, 0.00005, 0.0, 0.0, 0.0), 0.0)
PREFILL = WorkerFacts("p1", "1", "prefill", "p1:1", "fp", 4, 4000, 64, 2048)
DECODE = WorkerFacts("d1", "1", "decode", "d1:1", "fp", 4, 4000, 64, 2048)
LONG = call(ARRIVAL, prompt_token_ids=range(1000), slo=Slo(ttft_ms=10_000, tpot_ms=20))


def conditional(*workers: WorkerFacts) -> RouterCore:
    return core_of("slack", *workers, placement=Placement.CONDITIONAL, cost=COST)


def loaded(
    core: RouterCore, facts: WorkerFacts, running: int = 0, context: int = 0, pending: int = 0
) -> None:
    """The worker says what it has to do."""
    load = WorkerLoad(
        running=running, context_tokens=context, pending_prefill_tokens=pending, free_blocks=4000
    )
    tell(core, StepReported(facts.key, TokenColumns(), load))


def asked_first(core: RouterCore, number: int = 1) -> list[str]:
    return [action.worker.key for action in arrive(core, number, LONG) if isinstance(action, AskGrants)]


def test_an_idle_prefill_worker_takes_prompts_off_a_busy_decoder() -> None:
    core = conditional(PREFILL, DECODE)
    loaded(core, DECODE, running=60, context=6000)
    assert asked_first(core) == [PREFILL.key]


def test_nothing_waits_for_prefill_beside_an_idle_decode_worker() -> None:
    core = conditional(PREFILL, DECODE)
    loaded(core, PREFILL, pending=3000)
    assert asked_first(core) == [DECODE.key]


def test_a_free_worker_is_left_alone_if_waiting_is_better() -> None:
    core = conditional(PREFILL, DECODE)
    loaded(core, PREFILL, pending=4200)
    assert core.state.capacity.chunk(core.state.fleet.workers[PREFILL.key], core.state.now) < 2100
    loaded(core, DECODE, running=64, context=6000)
    assert asked_first(core) == []


def test_a_held_prefix_draws_a_request_to_its_worker() -> None:
    other = replace(PREFILL, worker_id="p2", address="p2:1")
    core = conditional(PREFILL, other, DECODE)
    hits = call(LONG, hits=PrefixHits({other.key: 240}))
    (asked,) = [action.worker.key for action in arrive(core, 1, hits) if isinstance(action, AskGrants)]
    assert asked == other.key


def test_two_that_come_together_go_to_two_workers() -> None:
    core = conditional(PREFILL, DECODE)
    (first,) = asked_first(core, 1)
    tell(core, Granted("t/r1/0", first, DECODE.key), GrantsAnswered(first))
    (second,) = asked_first(core, 2)
    assert {first, second} == {PREFILL.key, DECODE.key}


def test_one_call_offers_a_worker_to_one_request() -> None:
    core = conditional(PREFILL, DECODE)
    asked = [action for action in arrive(core, 1, LONG) if isinstance(action, AskGrants)]
    assert [entry.worker.max_grants for entry in asked] == [1]


def test_the_first_token_is_promised_as_the_path_will_have_it() -> None:
    core = conditional(PREFILL, DECODE)
    loaded(core, DECODE, running=60, context=6000, pending=3000)
    (told,) = [action for action in arrive(core, 1, LONG) if isinstance(action, TellAccepted)]
    alone_s = COST.predict(StepShape.of(0, 0, ((0, 1000),)))
    assert told.promise.predicted_ttft_ms < 2 * 1000 * alone_s


def test_what_workers_spend_their_time_on_is_followed() -> None:
    core = conditional(PREFILL, DECODE)
    mixed = StepShape.of(10, 1000, ((0, 500),))
    for tenth in range(1000):
        step = StepReported(
            DECODE.key,
            TokenColumns(),
            WorkerLoad(running=10, free_blocks=4000),
            step_s=0.1,
            shape=mixed,
        )
        tell(core, step, now=1 + tenth / 10)
    worker = core.state.fleet.workers[DECODE.key]
    decodes = COST.predict(StepShape.of(10, 1000, ())) / COST.predict(mixed)
    assert abs(worker.decode_share - decodes) < 0.01
    assert abs(worker.prefill_share - (1 - decodes)) < 0.01
