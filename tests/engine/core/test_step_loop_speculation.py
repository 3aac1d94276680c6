"""Drafted tokens that are verified in a step change how many steps there are, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from engine.core.commands import Decode
from scheduling.cost_model import CostModel
from scheduling.request import FinishReason, SamplingParams, StopRules
from tests.engine.core.plays import DRAFTED_PLAYS, Play, check_move
from tests.engine.loop_driver import FREE_DRAFTS, GREEDY, Driver, spec

pytestmark = pytest.mark.usefixtures("both_ways")


@settings(max_examples=60)
@given(DRAFTED_PLAYS)
def test_outputs_are_the_same_with_and_without_drafts(played: Play) -> None:
    """With every way to sample, when sequences join in the midst of others, and when blocks run out."""
    played.assert_told_alike({"speculates": False}, {"speculates": True})


def looping(**options: object) -> Driver:
    return Driver(num_seen=1, num_blocks=64, block_size=16, cost=FREE_DRAFTS, speculates=True, **options)  # type: ignore[arg-type]


def test_a_text_that_repeats_itself_takes_fewer_steps() -> None:
    driver = looping()
    driver.finish(Decode(spec(1, range(5), 200)))
    assert len(driver.tokens(1)) == 200
    assert driver.runner.num_steps < 60
    drafted = sum(report.drafted_tokens for report in driver.reports)
    accepted = sum(report.accepted_drafts for report in driver.reports)
    assert accepted == 200 - driver.runner.num_steps
    assert accepted <= drafted


def test_drafts_that_do_not_pay_are_given_up() -> None:
    """A drafted token takes half as long as a step, and one in four is right."""
    cost = CostModel((1.0, 0.0, 1.0, 0.0, 0.0, 0.0), 0.0)
    driver = Driver(num_blocks=64, block_size=16, cost=cost, speculates=True, max_context=1024)
    sampling = SamplingParams(temperature=3.0, seed=1, allowed_token_ids=(1, 2, 3, 4))
    driver.finish(Decode(spec(1, [1, 2, 3], 800, sampling=sampling)))
    drafted = [report.drafted_tokens for report in driver.reports]
    assert 0 < sum(drafted) < 60
    assert sum(drafted[200:]) < 20


def test_no_draft_outlives_the_promise_of_another_row() -> None:
    """One row has a draft and one has none, whose next token is due before a longer step would be over."""
    cost = CostModel((0.01, 0.0, 0.001, 0.0, 0.0, 0.0), 0.0)
    told = []
    for tpot_ms in (None, 12):
        driver = Driver(num_seen=1, num_blocks=64, block_size=16, cost=cost, speculates=True)
        other = spec(2, [9, 8], 60, sampling=replace(GREEDY, logprobs=0))
        driver.turn(Decode(spec(1, range(5), 60)), Decode(replace(other, tpot_ms=tpot_ms)))
        for _ in range(40):
            driver.now_s += 0.012
            driver.turn()
        told.append(sum(report.drafted_tokens for report in driver.reports))
    assert told[1] < told[0] / 2


@pytest.mark.parametrize("num_turns", range(1, 12, 2))
def test_a_choice_moves_with_all_of_its_accepted_drafts(num_turns: int) -> None:
    alone = Driver(num_seen=1, num_blocks=64, block_size=16)
    check_move(looping(), looping(), alone, spec(7, range(5), 90), num_turns)


def test_a_stop_within_an_accepted_draft_ends_the_choice_there() -> None:
    """The prompt has the run that ends with the stop token, so that the token is drafted."""
    alone = Driver(num_seen=1, num_blocks=64, block_size=16)
    alone.finish(Decode(spec(1, range(5), 12)))
    tokens = alone.tokens(1)
    prompt = [*tokens, 50, *range(5)]
    driver = looping()
    driver.finish(Decode(spec(1, prompt, stop=StopRules(max_tokens=200, stop_token_ids=(tokens[8],)))))
    assert driver.tokens(1) == tokens[:9]
    assert driver.rows(1)[-1][2] == FinishReason.STOP
    assert driver.runner.num_steps < 8
    driver.assert_at_rest()


def test_broken_logits_behind_a_draft_fail_the_sequence() -> None:
    alone = Driver(num_seen=1, num_blocks=64, block_size=16)
    alone.finish(Decode(spec(1, range(5), 120)))
    driver = looping()
    driver.turn(Decode(spec(1, range(5), 120)))
    while len(driver.tokens(1)) < 60:
        driver.turn()
    num_told = len(driver.tokens(1))
    driver.runner.poison = alone.tokens(1)[num_told + 2]
    driver.finish()
    assert "not finite" in driver.failures()[1]
    assert driver.tokens(1) == alone.tokens(1)[: len(driver.tokens(1))]
    driver.assert_at_rest()


def test_drafts_take_no_block_that_running_choices_need() -> None:
    driver = Driver(num_seen=1, num_blocks=8, block_size=4, cost=FREE_DRAFTS, speculates=True)
    driver.finish(Decode(spec(1, range(3), 12)), Decode(spec(2, range(4), 12)))
    assert not [handle for report in driver.reports for handle in report.preempted]
    assert len(driver.tokens(1)) == len(driver.tokens(2)) == 12
