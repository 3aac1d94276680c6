"""Drafts that stages verify change how many steps there are, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.commands import Cancel, Command, Decode
from engine.execution.flight import Flight
from scheduling.cost_model import CostModel
from scheduling.request import SequenceSpec
from tests.engine.core.plays import DRAFTED_PLAYS, PLACES, Play, check_move, drafted, drafting, free_requests
from tests.engine.fake_runner import FakeStages
from tests.engine.loop_driver import (
    CHEAP_DRAFTS,
    FREE_DRAFTS,
    GREEDY,
    UNKNOWN_COST,
    Driver,
    spec,
)

PROMPTS = [range(5), range(9, 13), range(20, 23), [8, 8, 8, 9], range(40, 47)]


def piped(stages: FakeStages, **options: Any) -> Driver:
    """A model whose texts soon repeat themselves, and stages through which several of its steps go."""
    given: dict[str, Any] = {
        "num_seen": 1,
        "num_blocks": 64,
        "block_size": 16,
        "cost": FREE_DRAFTS,
        **options,
    }
    return Driver(overlaps=False, speculates=True, stages=stages, **given)


@settings(max_examples=50)
@given(DRAFTED_PLAYS, st.integers(2, 4), st.integers(0, 9), st.sampled_from([0, 1, None]), st.booleans())
def test_outputs_are_those_of_one_process_without_drafts(
    played: Play, num_stages: int, seed: int, draft_seen: int | None, looks_up: bool
) -> None:
    """With grammars, penalties, log-probabilities and every way to end, and when blocks run out.

    Without a draft model where `draft_seen` is 0.
    """
    has_model = draft_seen != 0
    model = {"draft": played.draft(draft_seen), "draft_cost": CHEAP_DRAFTS} if has_model else {}
    drafts = {"stages": FakeStages(num_stages, seed), "speculates": looks_up, **model}
    played.assert_told_alike({"overlaps": False}, {"overlaps": False, **drafts})


@settings(max_examples=25)
@given(
    specs=free_requests(),
    num_stages=st.integers(2, 3),
    num_blocks=st.sampled_from([96, 40, 30]),
    places=PLACES,
    is_cancelled=st.booleans(),
)
def test_the_model_itself_as_draft_model_is_always_right(
    specs: list[SequenceSpec], num_stages: int, num_blocks: int, places: list[int], is_cancelled: bool
) -> None:
    """Its KV is that of the tokens that it drafts behind, while other steps are in flight."""
    stages = FakeStages(num_stages)
    driver = drafting(num_blocks=num_blocks, draft_cost=UNKNOWN_COST, stages=stages, overlaps=False)
    for request, turns in zip(specs, places, strict=False):
        driver.turn(Decode(request))
        for _ in range(turns):
            driver.turn()
    commands: list[Command] = [Cancel(1)] if is_cancelled else []
    driver.finish(*commands)
    driver.assert_at_rest()
    num_drafted, num_accepted = drafted(driver)
    assert num_accepted == num_drafted


@pytest.mark.parametrize("num_stages", [2, 3])
def test_steps_with_drafts_are_in_flight_together(num_stages: int) -> None:
    stages = FakeStages(num_stages)
    driver = piped(stages)
    plain = Driver(num_seen=1, num_blocks=64, block_size=16, stages=FakeStages(num_stages), overlaps=False)
    asked = [Decode(spec(handle, prompt, 100)) for handle, prompt in enumerate(PROMPTS, 1)]
    for each in (driver, plain):
        each.finish(*asked)
    for handle in range(1, len(PROMPTS) + 1):
        assert driver.rows(handle) == plain.rows(handle)
    assert stages.most_in_flight >= num_stages
    assert driver.runner.num_steps < plain.runner.num_steps / 3
    driver.assert_at_rest()


@pytest.mark.parametrize("num_stages", [2, 3])
def test_a_choice_that_is_cancelled_leaves_the_drafts_of_others_alone(num_stages: int) -> None:
    """It is before another one in a step in flight, in which that one has a draft."""
    driver = piped(FakeStages(num_stages, seed=None))
    plain = Driver(num_seen=1, num_blocks=64, block_size=16)
    asked = [Decode(spec(handle, prompt, 150)) for handle, prompt in enumerate(PROMPTS, 1)]
    plain.finish(*asked)
    driver.turn(*asked)
    while not any(map(has_later_draft, driver.loop._flights)):
        driver.turn()
    step = next(filter(has_later_draft, driver.loop._flights)).step
    cancelled = step.choices[0].group.handle
    driver.turn(Cancel(cancelled))
    driver.finish()
    for handle in range(1, len(PROMPTS) + 1):
        said, expected = driver.tokens(handle), plain.tokens(handle)
        assert said == (expected[: len(said)] if handle == cancelled else expected)
    assert len(driver.tokens(cancelled)) < 150
    driver.assert_at_rest()


def has_later_draft(flight: Flight) -> bool:
    """Return True if a choice of a step in flight has a draft behind another choice."""
    return any(place > 0 for place in flight.drafts)


@pytest.mark.parametrize("num_turns", [1, 4, 7])
def test_a_choice_moves_with_all_of_its_accepted_drafts(num_turns: int) -> None:
    alone = Driver(num_seen=1, num_blocks=64, block_size=16)
    check_move(piped(FakeStages(2)), piped(FakeStages(3)), alone, spec(7, range(5), 90), num_turns)


def test_no_draft_makes_a_token_of_another_micro_batch_late() -> None:
    """A step of a row takes 20 ms, and 30 ms with a drafted token. Three steps may be in flight.

    So with it, a sequence of the other micro-batch would have its tokens every 45 ms.
    """
    cost = CostModel((0.01, 0.0, 0.01, 0.0, 0.0, 0.0), 0.0)
    told = []
    for tpot_ms in (None, 40):
        driver = piped(FakeStages(2), cost=cost)
        other = spec(2, [9, 8], 150, sampling=replace(GREEDY, logprobs=0))
        driver.turn(Decode(spec(1, range(5), 150)), Decode(replace(other, tpot_ms=tpot_ms)))
        driver.finish()
        told.append(sum(report.drafted_tokens for report in driver.reports))
    assert told[0] > 20
    assert told[1] < told[0] / 4


def test_no_draft_makes_another_micro_batch_later_than_it_is() -> None:
    """The gaps that are promised have room for a draft, but the tokens have not come as fast as that."""
    cost = CostModel((0.01, 0.0, 0.01, 0.0, 0.0, 0.0), 0.0)
    told = []
    for tpot_ms in (None, 60):
        driver = piped(FakeStages(2, seed=None), cost=cost)
        other = spec(2, [9, 8], 150, sampling=replace(GREEDY, logprobs=0))
        driver.turn(Decode(spec(1, range(5), 150)), Decode(replace(other, tpot_ms=tpot_ms)))
        for _ in range(300):
            driver.now_s += 0.03
            driver.turn()
        told.append(sum(report.drafted_tokens for report in driver.reports))
    assert told[0] > 20
    assert told[1] < told[0] / 4


@pytest.mark.parametrize(("draft_s", "is_used"), [(0.2, True), (0.6, False)])
def test_a_draft_model_is_used_where_it_repays_the_wait_of_all_stages(draft_s: float, is_used: bool) -> None:
    """A step takes a second, and two micro-batches wait for each round of drafts."""
    draft_cost = CostModel((draft_s, 0.0, 0.0, 0.0, 0.0, 0.0), 0.0)
    driver = drafting(draft_cost=draft_cost, stages=FakeStages(2), overlaps=False)
    driver.finish(*(Decode(spec(handle, range(handle, handle + 5), 60)) for handle in (1, 2)))
    assert (drafted(driver)[0] > 0) is is_used


def test_a_failing_draft_model_fails_its_step_alone() -> None:
    driver = drafting(stages=FakeStages(2, seed=None), overlaps=False)
    assert driver.draft is not None
    driver.turn(Decode(spec(1, range(5), 60)))
    driver.turn(Decode(spec(2, range(3, 9), 60)))
    driver.draft.error = RuntimeError("out of memory")
    driver.finish()
    (failed,) = driver.failures()
    assert "out of memory" in driver.failures()[failed]
    assert len(driver.tokens(3 - failed)) == 60
    driver.assert_at_rest()
