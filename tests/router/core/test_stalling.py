"""A worker whose step does not end, or whose loop is held up, is given nothing new where another can be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.core.core import RouterCore
from router.core.model.actions import AskGrants, RequestRefused
from router.core.model.events import StepReported, WorkerFacts, WorkerHeld, WorkerLoad, WorkerLoaded
from router.core.model.fleet import STALL_S, STALL_STEPS
from router.links.metrics import NAMESPACE
from scheduling.columns import TokenColumns
from tests.router.conftest import RunningFleet, until
from tests.router.core_driver import ONE, TWO, arrive, core_of, tell

IDLE = WorkerLoad(free_blocks=64)


def beat(facts: WorkerFacts, running_step_s: float) -> WorkerLoaded:
    return WorkerLoaded(facts.key, IDLE, running_step_s)


def stepped(facts: WorkerFacts, step_s: float) -> StepReported:
    return StepReported(facts.key, TokenColumns(), IDLE, step_s)


def asked_for(core: RouterCore, count: int) -> set[str]:
    """The workers whose capacity is offered to so many newcomers."""
    asks = [action for number in range(1, count + 1) for action in arrive(core, number)]
    return {action.worker.key for action in asks if isinstance(action, AskGrants)}


def test_a_worker_whose_step_does_not_end_is_offered_nothing() -> None:
    core = core_of("slack")
    assert asked_for(core, 4) == {ONE.key, TWO.key}
    core = core_of("slack")
    tell(core, beat(ONE, STALL_S + 1))
    assert asked_for(core, 4) == {TWO.key}


@pytest.mark.parametrize("over", [beat(ONE, 0.0), stepped(ONE, 10.0)])
def test_once_its_step_has_ended_it_is_one_like_the_others(over: WorkerLoaded | StepReported) -> None:
    core = core_of("slack")
    tell(core, beat(ONE, STALL_S + 1), over)
    assert asked_for(core, 4) == {ONE.key, TWO.key}


@pytest.mark.parametrize("over", [beat(ONE, 0.0), stepped(ONE, 0.1)])
def test_a_worker_with_a_held_up_loop_is_offered_nothing(
    over: WorkerLoaded | StepReported,
) -> None:
    core = core_of("slack")
    tell(core, WorkerHeld(ONE.key), WorkerHeld("never seen"))
    assert asked_for(core, 4) == {TWO.key}
    core = core_of("slack")
    tell(core, WorkerHeld(ONE.key), over)
    assert asked_for(core, 4) == {ONE.key, TWO.key}


def test_the_only_worker_is_given_what_there_is() -> None:
    core = core_of("slack", ONE)
    tell(core, beat(ONE, STALL_S + 1))
    assert asked_for(core, 1) == {ONE.key}


def test_what_only_a_stalled_worker_could_hold_is_not_refused() -> None:
    small = WorkerFacts("d0", "1", "decode", "d0:1", "fp", 4, 8, 8, 64)
    core = core_of("slack", ONE, small)
    tell(core, beat(ONE, STALL_S + 1))
    assert not [action for action in arrive(core, 1) if isinstance(action, RequestRefused)]


def test_prompts_of_a_stalled_worker_are_no_work_for_others() -> None:
    core = core_of("slack")
    busy = replace(IDLE, pending_prefill_tokens=50)
    tell(core, WorkerLoaded(TWO.key, busy), WorkerLoaded(ONE.key, busy, STALL_S + 1))
    tell(core, WorkerLoaded(ONE.key, replace(IDLE, pending_prefill_tokens=70), STALL_S + 2))
    assert core.state.fleet.bound_tokens == 50
    tell(core, stepped(ONE, 10.0))
    assert core.state.fleet.bound_tokens == 50


def test_a_worker_of_long_steps_may_take_longer() -> None:
    core = core_of("slack")
    tell(core, stepped(ONE, STALL_S), beat(ONE, STALL_STEPS * STALL_S))
    assert asked_for(core, 4) == {ONE.key, TWO.key}
    core = core_of("slack")
    tell(core, stepped(ONE, STALL_S), beat(ONE, STALL_STEPS * STALL_S + 1))
    assert asked_for(core, 4) == {TWO.key}


@pytest.mark.integration
async def test_heartbeats_tell_how_long_a_step_runs(fleet: RunningFleet) -> None:
    _, decode = await fleet.pair(running_step_s=STALL_S + 1)
    worker = fleet.shell.core.state.fleet.workers[decode.record.key]
    await until(lambda: worker.stalled)
    sample = fleet.shell.metrics.registry.get_sample_value
    assert (sample(f"{NAMESPACE}_stalled_workers") or 0) >= 1
    decode.running_step_s = 0.0
    await until(lambda: not worker.stalled)
