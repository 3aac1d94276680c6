"""Tokens that a grammar forces need no step of their own, and change nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.commands import Decode
from scheduling.request import FinishReason, SamplingParams, SequenceSpec, StopRules
from tests.engine.core.plays import (
    BUDGETS,
    FORCED,
    FREE,
    PLACES,
    SAMPLINGS,
    STOPS,
    Play,
    asked,
    check_move,
    words,
)
from tests.engine.loop_driver import Driver

pytestmark = pytest.mark.usefixtures("both_ways")


@st.composite
def requests(draw: st.DrawFn) -> list[SequenceSpec]:
    patterns = draw(st.lists(st.sampled_from([FORCED, FORCED, FREE, ""]), min_size=1, max_size=4))
    return [
        asked(handle, pattern, draw(SAMPLINGS), draw(STOPS), draw(st.integers(1, 3)))
        for handle, pattern in enumerate(patterns, 1)
    ]


@settings(max_examples=25)
@given(st.builds(Play, requests(), st.sampled_from([64, 34, 22]), BUDGETS, PLACES))
def test_outputs_are_the_same_with_and_without_steps_of_their_own(played: Play) -> None:
    """Also when sequences join in the midst of others, and when blocks run out."""
    played.assert_told_alike({"takes_forced": False}, {"takes_forced": True})


def test_a_forced_text_takes_fewer_steps() -> None:
    request = asked(1, r"[A-C]-forced_tokens!", SamplingParams(temperature=0.0), StopRules(max_tokens=40))
    steps = []
    for takes_forced in (False, True):
        driver = Driver(**words(), block_size=16, takes_forced=takes_forced)
        driver.finish(Decode(request))
        assert driver.text(1)[1:] == "-forced_tokens!"
        steps.append(driver.runner.num_steps)
    assert steps[1] < steps[0] / 3


def test_a_step_computes_no_more_tokens_than_its_budget() -> None:
    driver = Driver(**words(), block_size=64, token_budget=8)
    requests = [
        asked(handle, FORCED, SamplingParams(temperature=0.0), StopRules(max_tokens=50))
        for handle in (1, 2, 3)
    ]
    driver.finish(*[Decode(request) for request in requests])
    assert max(num_tokens for _, num_tokens in driver.runner.batches) <= 8


@pytest.mark.parametrize("num_turns", range(4))
def test_a_choice_moves_with_all_of_its_forced_tokens(num_turns: int) -> None:
    request = asked(7, r"([A-C]-forced!){9}", SamplingParams(temperature=0.9, seed=4), StopRules(99))
    source, target, alone = (Driver(**words()) for _ in range(3))
    check_move(source, target, alone, request, num_turns)


def test_a_stop_string_within_forced_tokens_ends_the_choice_there() -> None:
    stop = StopRules(max_tokens=50, stop_strings=("rce",))
    driver = Driver(**words(), block_size=32)
    driver.finish(Decode(asked(1, FORCED, SamplingParams(temperature=0.0), stop)))
    assert driver.text(1).endswith("-fo")
    assert driver.rows(1)[-1][2] == FinishReason.STOP
    # The blocks of what came after it are not found by another prompt.
    again = asked(2, FORCED, SamplingParams(temperature=0.0), StopRules(max_tokens=50))
    again = replace(again, prompt_token_ids=(*range(1, 6), *driver.tokens(1), *range(40, 70)))
    driver.finish(Decode(again))
    driver.assert_at_rest()
