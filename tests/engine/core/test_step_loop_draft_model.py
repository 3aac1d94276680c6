"""A draft model changes how many steps there are, and nothing else; what it computes is right everywhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.commands import Cancel, Command, Decode
from scheduling.cost_model import CostModel
from scheduling.draft_model import NEARLY
from scheduling.request import FinishReason, SamplingParams, SequenceSpec, StopRules
from scheduling.speculation import Drafter
from tests.engine.core.plays import (
    BUDGETS,
    COSTS,
    DRAFTED_PLAYS,
    PLACES,
    Play,
    check_move,
    drafted,
    drafting,
    free_requests,
)
from tests.engine.core.test_step_loop_handoff import hand_over
from tests.engine.loop_driver import (
    CHEAP_DRAFTS,
    GREEDY,
    UNKNOWN_COST,
    Driver,
    spec,
)

pytestmark = pytest.mark.usefixtures("both_ways")

RANDOM = SamplingParams(temperature=0.9, top_p=0.8, seed=21)


@settings(max_examples=40)
@given(
    DRAFTED_PLAYS, st.sampled_from([1, None]), st.booleans(), st.sampled_from([CHEAP_DRAFTS, UNKNOWN_COST])
)
def test_outputs_are_the_same_with_and_without_a_draft_model(
    played: Play, draft_seen: int | None, looks_up: bool, draft_cost: CostModel
) -> None:
    """With every way to sample and to end, grammars, sequences that join others, and too few blocks."""
    drafts = {"speculates": looks_up, "draft": played.draft(draft_seen), "draft_cost": draft_cost}
    played.assert_told_alike({}, drafts)


@pytest.mark.long
@settings(max_examples=40)
@given(
    specs=free_requests(),
    num_blocks=st.sampled_from([96, 40, 30]),
    budget=BUDGETS,
    cost=COSTS,
    places=PLACES,
    is_cancelled=st.booleans(),
)
def test_the_model_itself_as_draft_model_is_always_right(
    specs: list[SequenceSpec],
    num_blocks: int,
    budget: int,
    cost: CostModel,
    places: list[int],
    is_cancelled: bool,
) -> None:
    """All that it reads in its pool is what it computed for just these tokens, whoever had the blocks before.

    Prompts begin alike, so that blocks are shared and found again; there are too few, so that sequences are
    computed again or come back from host memory.
    """
    driver = drafting(num_blocks=num_blocks, token_budget=budget, cost=cost, draft_cost=UNKNOWN_COST)
    for again in (0, 100):
        for request, turns in zip(specs, places, strict=False):
            driver.turn(Decode(replace(request, handle=request.handle + again)))
            for _ in range(turns):
                driver.turn()
        commands: list[Command] = [Cancel(1)] if is_cancelled else []
        driver.finish(*commands)
        driver.assert_at_rest()
    for report in driver.reports:
        assert report.accepted_drafts == report.drafted_tokens


@pytest.mark.parametrize("sampling", [GREEDY, RANDOM], ids=["greedy", "random"])
@pytest.mark.parametrize("num_prompt", [3, NEARLY, 3 * NEARLY])
def test_a_good_draft_model_saves_most_steps(sampling: SamplingParams, num_prompt: int) -> None:
    alone, driver = Driver(num_blocks=96), drafting(num_blocks=96)
    for each in (alone, driver):
        each.finish(Decode(spec(1, range(num_prompt), 120, sampling=sampling)))
    assert driver.rows(1) == alone.rows(1)
    assert driver.runner.num_steps < alone.runner.num_steps / 4
    num_drafted, num_accepted = drafted(driver)
    assert (
        num_accepted
        == num_drafted
        == sum(report.drafts[Drafter.MODEL].drafted for report in driver.reports if report.drafts)
    )


def test_drafts_that_are_never_right_are_given_up() -> None:
    """A round takes half as long as a step."""
    dear = CostModel((0.5, 0.0, 0.001, 0.0, 0.0, 0.0), 0.0)
    driver = drafting(1, num_blocks=96, block_size=16, draft_cost=dear, max_context=1024, draft_context=1024)
    driver.finish(Decode(spec(1, range(30), 800)))
    told = [report.drafted_tokens for report in driver.reports]
    assert 0 < sum(told) < 60
    assert sum(told[200:]) < 20


@pytest.mark.parametrize("draft_s", [0.3, 1.2])
def test_a_draft_model_is_used_only_where_it_is_fast(draft_s: float) -> None:
    driver = drafting(draft_cost=CostModel((draft_s, 0.0, 0.0, 0.0, 0.0, 0.0), 0.0))
    driver.finish(Decode(spec(1, range(5), 60)))
    assert (drafted(driver)[0] > 0) is (draft_s < 1)


def test_a_prompt_is_not_computed_again_for_a_few_tokens() -> None:
    """Catching up takes 4 steps' time, and 3 tokens save less than that."""
    dear = CostModel((0.1, 0.0, 0.04, 0.0, 0.0, 0.0), 0.0)
    few, many = (drafting(draft_cost=dear, num_blocks=96) for _ in range(2))
    few.finish(Decode(spec(1, range(96), 4)))
    many.finish(Decode(spec(1, range(96), 60)))
    assert few.runner.num_steps == 2 + 3
    assert drafted(few) == (0, 0)
    assert drafted(many)[0] > 0


@pytest.mark.parametrize("num_blocks", [0, 2, 6])
def test_kv_from_another_worker_is_computed_again_for_the_drafts(num_blocks: int) -> None:
    request = spec(1, range(21), 40)
    source, target, alone = Driver(), drafting(), Driver()
    hand_over(source, target, request, num_blocks)
    alone.finish(Decode(request))
    assert target.rows(1) == alone.rows(1)
    num_drafted, num_accepted = drafted(target)
    assert num_drafted == num_accepted > 20


@pytest.mark.parametrize("num_turns", range(1, 8, 2))
def test_a_choice_moves_with_all_of_its_accepted_drafts(num_turns: int) -> None:
    request = spec(7, range(5), 200, sampling=RANDOM)
    source, target = drafting(), drafting()
    check_move(source, target, Driver(), request, num_turns)
    assert drafted(target)[0] == drafted(target)[1] > 0


def test_a_stop_within_an_accepted_draft_ends_the_choice_there() -> None:
    alone = Driver()
    alone.finish(Decode(spec(1, range(5), 30)))
    tokens = alone.tokens(1)
    driver = drafting()
    driver.finish(Decode(spec(1, range(5), stop=StopRules(max_tokens=200, stop_token_ids=(tokens[8],)))))
    assert driver.tokens(1) == tokens[: tokens.index(tokens[8]) + 1]
    assert driver.rows(1)[-1][2] == FinishReason.STOP
    driver.assert_at_rest()


def test_no_token_is_drafted_behind_the_draft_models_context() -> None:
    driver, alone = drafting(draft_context=40), Driver()
    for each in (driver, alone):
        each.finish(Decode(spec(1, range(5), 100)))
    assert driver.tokens(1) == alone.tokens(1)
    assert driver.draft is not None
    assert int(driver.draft.pool[..., 1].max()) < 40
    assert drafted(driver)[0] > 20


def test_a_promise_holds_with_the_time_of_drafting() -> None:
    """A draft model that would make a step last longer than the promised gap drafts less, or not at all."""
    cost = CostModel((0.010, 0.0, 0.0, 0.0, 0.0, 0.0), 0.0)
    draft_cost = CostModel((0.002, 0.0, 0.0, 0.0, 0.0, 0.0), 0.0)
    longest = []
    for itl_ms in (None, 15, 11):
        driver = drafting(cost=cost, draft_cost=draft_cost)
        driver.turn(Decode(replace(spec(1, range(5), 60), itl_ms=itl_ms)))
        for _ in range(20):
            driver.now_s += 0.010
            driver.turn()
        longest.append(max(report.drafted_tokens for report in driver.reports))
    assert longest[0] > 2
    assert longest[1:] == [2, 0]


def test_a_failing_draft_model_fails_the_step_as_the_model_does() -> None:
    driver = drafting()
    driver.turn(Decode(spec(1, range(5), 60)))
    assert driver.draft is not None
    driver.draft.error = RuntimeError("out of memory")
    driver.finish()
    assert "out of memory" in driver.failures()[1]
    driver.finish(Decode(spec(2, range(5), 60)))
    assert len(driver.tokens(2)) == 60
    driver.assert_at_rest()


def test_a_cached_prefix_is_not_computed_again_for_the_drafts() -> None:
    driver = drafting(num_blocks=96)
    assert driver.draft is not None
    driver.finish(Decode(spec(1, range(60), 40)))
    prompt = [*range(60), *driver.tokens(1), 7, 7]
    num_before = len(driver.draft.batches)
    driver.finish(Decode(spec(2, prompt, 40)))
    longest = max(num_tokens for _, num_tokens in driver.draft.batches[num_before:])
    assert longest < 40
    assert drafted(driver)[0] == drafted(driver)[1] > 40


def test_choices_of_one_prompt_compute_it_once_for_their_drafts() -> None:
    driver = drafting(num_blocks=96)
    assert driver.draft is not None
    sampling = replace(RANDOM, n=3)
    driver.finish(Decode(spec(1, range(60), 30, sampling=sampling, choices=(0, 1, 2))))
    assert sum(num_tokens >= 32 for _, num_tokens in driver.draft.batches) == 1
    assert drafted(driver)[0] == drafted(driver)[1] > 40


def test_new_sequences_learn_from_those_before_them() -> None:
    """Once its drafts were wrong for one, a draft model computes the prompts of few others."""
    driver = drafting(1, num_blocks=96, draft_cost=CostModel((0.3, 0.0, 0.03, 0.0, 0.0, 0.0), 0.0))
    assert driver.draft is not None
    computed = []
    for handle in range(1, 9):
        num_before = sum(num_tokens for _, num_tokens in driver.draft.batches)
        driver.finish(Decode(spec(handle, range(handle, handle + 60), 20)))
        computed.append(sum(num_tokens for _, num_tokens in driver.draft.batches) - num_before)
    assert computed[0] >= 60
    assert computed.count(0) >= 4, computed
