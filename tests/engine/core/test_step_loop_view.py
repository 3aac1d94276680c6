"""The loop shows a policy its state, and carries out its plan."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from engine.core.commands import Decode, KVArrived, Prefill, Receive, SetCost
from scheduling.columns import TokenColumns
from scheduling.cost_model import StepShape
from scheduling.policies.chunked import CHUNKED
from scheduling.policies.prefill_first import PREFILL_FIRST
from scheduling.request import SamplingParams, SequenceSpec
from scheduling.step import Chunk, StepPlan, StepView
from tests.engine.fake_runner import greedy
from tests.engine.loop_driver import DEAR_TOKENS, UNKNOWN_COST, VOCAB, Driver, spec, watching


def promised(
    handle: int, tpot_ms: int | None, itl_ms: int | None = None, max_tokens: int = 30
) -> SequenceSpec:
    return replace(spec(handle, [handle, 5], max_tokens), tpot_ms=tpot_ms, itl_ms=itl_ms)


def test_a_view_tells_slack_and_gap_limit_of_the_running_promises() -> None:
    views: list[StepView] = []
    driver = Driver(policy=watching(views))
    driver.turn(Decode(promised(1, 100)), Decode(promised(2, None)), Decode(promised(3, 400, 350)))
    assert views[-1].decodes.num_seqs == 0
    assert views[-1].decodes.slack_s == math.inf
    driver.now_s += 0.03
    driver.turn()
    decodes = views[-1].decodes
    assert (decodes.num_seqs, decodes.context_tokens) == (3, 9)
    assert decodes.slack_s == pytest.approx(0.07)
    assert decodes.gap_limit_s == pytest.approx(0.3)
    # The first is late now, and may catch up: its tokens are due at 0.2, 0.3 and 0.4 still.
    driver.now_s += 0.3
    driver.turn()
    assert views[-1].decodes.slack_s == 0.0
    driver.turn()
    assert views[-1].decodes.slack_s == 0.0
    driver.turn()
    assert views[-1].decodes.slack_s == pytest.approx(0.07)
    # A token so late that it is hopeless comes, and the next one has a whole gap again.
    driver.now_s += 0.5
    driver.turn()
    driver.turn()
    assert views[-1].decodes.slack_s == pytest.approx(0.1)


def test_due_times_after_a_handoff_begin_with_its_first_token() -> None:
    views: list[StepView] = []
    driver = Driver(policy=watching(views))
    driver.turn(Receive(promised(1, 100)))
    told = TokenColumns([1], [0], [0], [9], [0])
    # Nothing was verified: a step computes its prompt before it joins.
    driver.turn(KVArrived(1, 0, told, first_token_age_s=0.04))
    driver.turn()
    assert views[-1].decodes.slack_s == pytest.approx(0.06)


def test_a_view_tells_of_prompts_in_order_of_arrival() -> None:
    views: list[StepView] = []
    driver = Driver(policy=watching(views), token_budget=8)
    driver.turn(Decode(spec(1, list(range(20)), 3, choices=(0, 1))), Prefill(spec(2, list(range(30, 33)), 3)))
    driver.now_s += 0.5
    driver.turn()
    first, second = views[-1].waiting
    assert (first.num_remaining_tokens, first.num_computed_tokens, first.num_seqs) == (12, 8, 2)
    assert (second.num_remaining_tokens, second.num_computed_tokens, second.num_seqs) == (3, 0, 1)
    assert first.waited_s == second.waited_s == 0.5


def test_costs_are_those_that_were_set_last() -> None:
    views: list[StepView] = []
    driver = Driver(policy=watching(views))
    driver.turn(Decode(spec(1, [1], 9)))
    driver.turn(SetCost(DEAR_TOKENS))
    assert [view.cost for view in views] == [UNKNOWN_COST, DEAR_TOKENS]


def test_every_step_reports_its_shape() -> None:
    driver = Driver(token_budget=8)
    driver.turn(Decode(spec(1, [1, 2], 9)))
    driver.turn(Decode(spec(2, list(range(20)), 3)))
    driver.turn()
    assert [report.shape for report in driver.reports] == [
        StepShape.of(0, 0, [(0, 2)]),
        StepShape.of(1, 3, [(0, 7)]),
        StepShape.of(1, 4, [(7, 7)]),
    ]


def test_paused_decodes_go_on_as_if_nothing_had_been() -> None:
    sampling = SamplingParams(temperature=0.8, seed=3, frequency_penalty=0.5, logprobs=1)
    specs = [
        spec(1, [1, 2], 12, sampling=sampling),
        spec(2, [3], 12),
        spec(3, list(range(9)), 6, sampling=sampling, choices=(0, 1)),
        spec(4, list(range(20, 60)), 6),
    ]
    driver, alone = Driver(policy=PREFILL_FIRST, token_budget=16), Driver()
    driver.turn(Decode(specs[0]), Decode(specs[1]))
    for sequence in specs[2:]:
        driver.turn(Decode(sequence))
        shape = driver.reports[-1].shape
        assert shape is not None
        assert shape.num_decodes == 0
    driver.finish()
    for sequence in specs:
        alone.finish(Decode(sequence))
        for choice in sequence.choices:
            assert driver.rows(sequence.handle, choice) == alone.rows(sequence.handle, choice)
            assert driver.logprobs(sequence.handle, choice) == alone.logprobs(sequence.handle, choice)
    driver.assert_at_rest()


def test_prompts_may_exceed_the_budget_where_the_policy_says_so() -> None:
    driver = Driver(policy=PREFILL_FIRST, token_budget=4)
    driver.finish(*(Decode(spec(handle, [handle] * 30, 3)) for handle in range(3)))
    assert max(tokens for _, tokens in driver.runner.batches) >= 30
    assert [driver.tokens(handle) for handle in range(3)] == [greedy([h] * 30, 3, VOCAB) for h in range(3)]


def test_the_loop_waits_for_commands_as_long_as_the_policy_would() -> None:
    plans = iter([StepPlan(0, wait_s=0.25), StepPlan(0, wait_s=0.0), None])
    waits: list[float] = []

    def plan(view: StepView) -> StepPlan:
        told = next(plans)
        return told or StepPlan(0, tuple(Chunk(work.key, 2) for work in view.waiting))

    def drain(timeout_s: float) -> list[Decode]:
        waits.append(timeout_s)
        return [Decode(spec(1, [1, 2], 1))] if len(waits) == 1 else []

    driver = Driver(policy=replace(CHUNKED, plan=plan))
    driver.loop.run(drain, driver.reports.append, lambda: len(waits) == 3)
    # Never 0 without a step, whatever the policy says: that would be a busy loop.
    assert waits == [0.0, 0.25, 0.001]
    assert driver.tokens(1) == greedy([1, 2], 1, VOCAB)
