"""Sequences that lose their blocks to others say what they would have said undisturbed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.commands import Cancel, Decode, KVArrived, Prefill, Receive, SetCost
from scheduling.columns import TokenColumns
from scheduling.cost_model import CostModel
from scheduling.request import SamplingParams, SequenceSpec, StopRules
from scheduling.step import StepView
from tests.engine.fake_runner import greedy
from tests.engine.loop_driver import DEAR_TOKENS, GREEDY, UNKNOWN_COST, VOCAB, Driver, spec, watching

pytestmark = pytest.mark.usefixtures("both_ways")

MEANS = pytest.mark.parametrize(
    ("cost", "num_swap_blocks"),
    [(UNKNOWN_COST, 0), (DEAR_TOKENS, 100), (DEAR_TOKENS, 7)],
    ids=["recompute", "swap", "both"],
)
PENALISED = SamplingParams(
    temperature=0.9, seed=7, presence_penalty=0.4, repetition_penalty=1.2, frequency_penalty=0.3, logprobs=2
)


def short_pool(cost: CostModel, num_swap_blocks: int, *, num_blocks: int = 16, budget: int = 64) -> Driver:
    """A pool that is soon full: outputs have been short so far, and nothing promises that they stay so."""
    driver = Driver(
        num_blocks=num_blocks, cost=cost, num_swap_blocks=num_swap_blocks, token_budget=budget, max_num_seqs=8
    )
    driver.finish(*(Decode(spec(1000 + n, [n], 1)) for n in range(9)))
    return driver


def assert_undisturbed(driver: Driver, specs: Iterable[SequenceSpec]) -> None:
    """Tokens, text, ends and log-probabilities are those of each alone in a large pool."""
    for sequence in specs:
        alone = Driver()
        alone.finish(Decode(sequence))
        for choice in sequence.choices:
            assert driver.rows(sequence.handle, choice) == alone.rows(sequence.handle, choice)
            assert driver.text(sequence.handle, choice) == alone.text(sequence.handle, choice)
            assert driver.logprobs(sequence.handle, choice) == alone.logprobs(sequence.handle, choice)
    driver.assert_at_rest()


def events(driver: Driver) -> tuple[list[int], list[int]]:
    reports = driver.reports
    return [h for report in reports for h in report.preempted], [h for r in reports for h in r.resumed]


def go_on_until_one_is_preempted(driver: Driver) -> int:
    for _ in range(100):
        if preempted := events(driver)[0]:
            return preempted[0]
        driver.turn()
    raise AssertionError("nobody was preempted")


@MEANS
@pytest.mark.parametrize("sampling", [GREEDY, PENALISED], ids=["greedy", "penalised"])
def test_output_is_that_of_an_undisturbed_run(
    cost: CostModel, num_swap_blocks: int, sampling: SamplingParams
) -> None:
    driver = short_pool(cost, num_swap_blocks)
    specs = [spec(handle, [handle, 5, 6], 30, sampling=sampling) for handle in range(4)]
    driver.finish(*map(Decode, specs))
    preempted, resumed = events(driver)
    assert preempted
    assert sorted(preempted) == sorted(resumed)
    assert_undisturbed(driver, specs)
    is_swapped_only = num_swap_blocks == 100
    assert (sum(report.recomputed_tokens for report in driver.reports) == 0) is is_swapped_only


@MEANS
@pytest.mark.parametrize("num_choices", [2, 3])
def test_choices_of_one_prompt_go_on_apart_or_together(
    cost: CostModel, num_swap_blocks: int, num_choices: int
) -> None:
    driver = short_pool(cost, num_swap_blocks, num_blocks=30)
    specs = [
        spec(handle, [*range(6), handle], 30, sampling=PENALISED, choices=tuple(range(num_choices)))
        for handle in range(6 // num_choices)
    ]
    driver.finish(*map(Decode, specs))
    assert events(driver)[0]
    assert_undisturbed(driver, specs)
    assert [p.handle for r in driver.reports for p in r.prefilled if p.handle < 1000] == [
        sequence.handle for sequence in specs
    ]
    assert sorted(h for h in driver.freed() if h < 1000) == [sequence.handle for sequence in specs]


@MEANS
@settings(max_examples=25)
@given(data=st.data())
def test_whatever_runs_in_whatever_pool(cost: CostModel, num_swap_blocks: int, data: st.DataObject) -> None:
    specs = [
        spec(
            handle,
            data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=12)),
            data.draw(st.integers(1, 24)),
            sampling=data.draw(st.sampled_from([GREEDY, PENALISED])),
            choices=tuple(range(data.draw(st.integers(1, 3)))),
        )
        for handle in range(data.draw(st.integers(1, 6)))
    ]
    num_blocks = data.draw(st.sampled_from([27, 30]))
    driver = short_pool(
        cost, num_swap_blocks, num_blocks=num_blocks, budget=data.draw(st.sampled_from([3, 64]))
    )
    driver.finish(*map(Decode, specs))
    assert not driver.failures()
    assert_undisturbed(driver, specs)


def test_who_came_first_is_not_passed_by_newcomers_when_it_comes_back() -> None:
    driver = short_pool(UNKNOWN_COST, 0, num_blocks=12)
    first = [spec(handle, [handle, 5, 6], 30) for handle in range(3)]
    driver.turn(*map(Decode, first))
    go_on_until_one_is_preempted(driver)
    driver.finish(Decode(spec(9, [9], 2)))
    order = list(dict.fromkeys(h for report in driver.reports for h in report.tokens.handles if h < 1000))
    assert order[-1] == 9
    assert_undisturbed(driver, [*first, spec(9, [9], 2)])


def test_the_load_counts_preempted_choices_among_those_that_wait() -> None:
    driver = short_pool(DEAR_TOKENS, 100, num_blocks=12)
    driver.turn(*(Decode(spec(handle, [handle, 5, 6], 30)) for handle in range(3)))
    go_on_until_one_is_preempted(driver)
    load = driver.reports[-1].load
    assert load.preempted == len(events(driver)[0])
    assert load.waiting == load.preempted
    assert load.running + load.preempted == 3


@MEANS
def test_a_preempted_sequence_can_be_cancelled(cost: CostModel, num_swap_blocks: int) -> None:
    driver = short_pool(cost, num_swap_blocks, num_blocks=20)
    specs = [spec(handle, [handle, 5, 6], 30, choices=(0, 1)) for handle in range(3)]
    driver.turn(*map(Decode, specs))
    victim = go_on_until_one_is_preempted(driver)
    driver.finish(Cancel(victim))
    assert_undisturbed(driver, [sequence for sequence in specs if sequence.handle != victim])
    assert not driver.failures()


@MEANS
def test_a_preempted_handed_over_sequence_keeps_its_first_token(
    cost: CostModel, num_swap_blocks: int
) -> None:
    driver = short_pool(cost, num_swap_blocks, num_blocks=12)
    prompt = list(range(9))
    first = (greedy(prompt, 1, VOCAB)[0] + 1) % VOCAB  # not what this model would draw
    driver.turn(Receive(spec(1, prompt, 25)), *(Decode(spec(h, [h, 1], 25)) for h in (2, 3)))
    driver.finish(KVArrived(1, 0, TokenColumns([1], [0], [0], [first], [0])))
    assert events(driver)[0]
    assert driver.tokens(1) == [first, *greedy([*prompt, first], 24, VOCAB)]
    assert driver.tokens(2) == greedy([2, 1], 25, VOCAB)
    driver.assert_at_rest()


def test_stop_tokens_and_limits_count_from_the_first_token_on() -> None:
    driver = short_pool(UNKNOWN_COST, 0)
    stops = greedy([4, 5, 6], 25, VOCAB)[-1]
    stop = StopRules(max_tokens=40, min_tokens=20, stop_token_ids=(stops,))
    specs = [*(spec(h, [h, 5, 6], 30) for h in (1, 2, 3)), spec(4, [4, 5, 6], stop=stop)]
    driver.finish(*map(Decode, specs))
    assert 4 in events(driver)[0]
    assert_undisturbed(driver, specs)


def test_prompts_held_for_others_are_never_victims() -> None:
    driver = short_pool(UNKNOWN_COST, 0, num_blocks=12)
    driver.finish(Prefill(spec(1, list(range(20, 40)), 4)))
    blocks = [block for report in driver.reports for f in report.filled for block in f.blocks]
    driver.finish(*(Decode(spec(h, [h, 5, 6], 22)) for h in (2, 3)))
    assert set(events(driver)[0]) <= {2, 3}
    assert driver.runner.pool[blocks].reshape(-1, 2)[:, 0].tolist() == list(range(20, 40))
    assert driver.tokens(2) == greedy([2, 5, 6], 22, VOCAB)


def test_due_times_go_on_while_a_sequence_waits_for_its_blocks() -> None:
    views: list[StepView] = []
    driver = Driver(
        num_blocks=16,
        cost=DEAR_TOKENS,
        num_swap_blocks=100,
        max_num_seqs=8,
        policy=watching(views),
        overlaps=False,
    )
    driver.finish(*(Decode(spec(1000 + n, [n], 1)) for n in range(9)))
    last = replace(spec(3, [3, 5, 6], 30), tpot_ms=1_000_000)
    driver.turn(*(Decode(spec(h, [h, 5, 6], 30)) for h in range(3)), Decode(last))
    victim = go_on_until_one_is_preempted(driver)
    assert victim == last.handle
    # Its last view was of the token that it got then; the next one is due a TPOT later.
    due_s = driver.now_s + views[-2].decodes.slack_s + 1000.0
    assert views[-1].decodes.slack_s == math.inf
    driver.now_s += 5.0
    while not events(driver)[1]:
        driver.turn()
    assert driver.now_s + views[-1].decodes.slack_s == pytest.approx(due_s)


def test_costs_decide_between_the_means() -> None:
    driver = short_pool(UNKNOWN_COST, 100)
    driver.finish(SetCost(DEAR_TOKENS), *(Decode(spec(h, [h, 5, 6], 30)) for h in range(4)))
    assert events(driver)[0]
    assert sum(report.recomputed_tokens for report in driver.reports) == 0
