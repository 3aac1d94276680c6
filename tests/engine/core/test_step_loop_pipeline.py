"""A loop with several steps on their way through a pipeline says what one says that waits for each step."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.commands import Cancel, Decode, Prefill, Release
from scheduling.step import StepView
from tests.engine.core.test_step_loop_overlap import (
    RANDOM,
    assert_outputs_are_those_of_each_alone,
    assert_same,
)
from tests.engine.fake_runner import FakeStages, greedy
from tests.engine.loop_driver import VOCAB, Driver, spec, watching

PROMPTS = [[3, 1], [7, 7, 2], [5], [9, 8, 7, 6, 5], [1, 2], [4, 4, 4]]


def piped(num_stages: int = 2, **options: Any) -> tuple[Driver, FakeStages]:
    stages = FakeStages(num_stages)
    return Driver(overlaps=False, stages=stages, **options), stages


@settings(max_examples=60)
@given(data=st.data())
def test_whatever_comes_ends_is_cancelled_or_loses_its_blocks(data: st.DataObject) -> None:
    stages = FakeStages(data.draw(st.integers(2, 4)), data.draw(st.integers(0, 9)))
    assert_outputs_are_those_of_each_alone(data, overlaps=False, stages=stages)


@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_as_many_steps_are_in_flight_as_there_are_stages(num_stages: int) -> None:
    driver, stages = piped(num_stages)
    prompts = [[*prompt, number] for number in range(2) for prompt in PROMPTS]
    requests = [spec(handle, prompt, 20) for handle, prompt in enumerate(prompts, 1)]
    driver.finish(*map(Decode, requests))
    assert num_stages <= stages.most_in_flight <= num_stages + 1
    for request, prompt in zip(requests, prompts, strict=True):
        assert driver.tokens(request.handle) == greedy(prompt, 20, VOCAB)
    driver.assert_at_rest()


def test_a_micro_batch_has_its_share_of_the_rows() -> None:
    views: list[StepView] = []
    driver, _ = piped(2, policy=watching(views))
    driver.finish(*(Decode(spec(handle, prompt, 20)) for handle, prompt in enumerate(PROMPTS, 1)))
    assert max(view.decodes.num_seqs for view in views) == 3


def test_penalties_and_log_probabilities_are_the_same() -> None:
    requests = [
        spec(handle, prompt, 12, sampling=RANDOM, choices=(0, 1, 2))
        for handle, prompt in enumerate(PROMPTS, 1)
    ]
    driver, _ = piped(3)
    plain = Driver(overlaps=False)
    for each in (driver, plain):
        each.finish(*map(Decode, requests))
    assert_same(driver, plain, requests)


@pytest.mark.parametrize("num_turns", range(8))
def test_a_cancelled_sequence_leaves_the_others_alone(num_turns: int) -> None:
    driver, _ = piped(3)
    requests = [spec(handle, prompt, 15) for handle, prompt in enumerate(PROMPTS, 1)]
    driver.turn(*map(Decode, requests))
    for _ in range(num_turns):
        driver.turn()
    driver.turn(Cancel(1), Cancel(4))
    driver.finish()
    for handle, prompt in enumerate(PROMPTS, 1):
        expected = greedy(prompt, 15, VOCAB)
        said = driver.tokens(handle)
        assert said == (expected[: len(said)] if handle in {1, 4} else expected)
    driver.assert_at_rest()


def test_a_first_stage_that_fails_fails_its_step_alone() -> None:
    driver = Driver(overlaps=False, stages=FakeStages(2, seed=None))
    driver.turn(Decode(spec(1, PROMPTS[0], 30)))
    driver.runner.error = RuntimeError("no memory")
    driver.turn(Decode(spec(2, PROMPTS[1], 30)))
    driver.finish()
    assert set(driver.failures()) == {2}
    assert driver.tokens(1) == greedy(PROMPTS[0], 30, VOCAB)
    driver.assert_at_rest()


def test_prompts_for_other_workers_are_handed_over() -> None:
    driver, _ = piped(2, token_budget=4)
    for handle, prompt in enumerate(PROMPTS, 1):
        driver.turn(Prefill(spec(handle, prompt, 15)))
    driver.finish()
    for handle, prompt in enumerate(PROMPTS, 1):
        assert driver.tokens(handle) == greedy(prompt, 1, VOCAB)
        [filled] = [row for report in driver.reports for row in report.filled if row.handle == handle][-1:]
        assert filled.complete
    driver.finish(*(Release(handle) for handle in range(1, len(PROMPTS) + 1)))
    driver.assert_at_rest()


def test_what_came_apart_comes_together_again() -> None:
    """Sequences arrive one by one; after a while two steps share their rows."""
    driver = Driver(overlaps=False, stages=FakeStages(2, seed=None), num_blocks=512)
    for handle, prompt in enumerate([*PROMPTS, [8]], 1):
        driver.turn(Decode(spec(handle, prompt, 60)))
    driver.finish()
    sizes = [num_seqs for num_seqs, _ in driver.runner.batches[40:100]]
    assert sizes in ([4, 3] * 30, [3, 4] * 30)
