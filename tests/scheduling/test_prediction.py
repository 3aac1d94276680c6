"""Predictions move the way the world does, and ratios are learnt and forgotten."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.cost_model import CostModel
from scheduling.prediction import (
    ENOUGH,
    MAX_AGE_S,
    PRIOR,
    Ahead,
    Ask,
    DecodeView,
    FleetView,
    LearntRatios,
    OutputLengths,
    PrefillView,
    decode_step_s,
    predict,
    seq_capacity,
)

COST = CostModel((0.002, 0.0001, 0.0001, 1e-7, 1e-8, 1e-8), 8)
PREFILL = PrefillView(COST, token_budget=64, bound_tokens=0)
DECODE = DecodeView(COST, 4, 400, seq_capacity=8, free_blocks=100, mean_remaining_tokens=50, mean_blocks=10)
FLEET = FleetView((PREFILL,), (DECODE,), aggregated=False)
ASK = Ask(prompt_tokens=100, cached_tokens=0, blocks=10, num_seqs=1)

tokens = st.integers(0, 10_000)


@given(tokens, tokens)
def test_more_work_ahead_never_promises_an_earlier_first_token(few: int, more: int) -> None:
    few, more = sorted((few, more))
    assert predict(ASK, Ahead(few, 0), FLEET).ttft_s <= predict(ASK, Ahead(more, 0), FLEET).ttft_s


@given(st.integers(0, 50), st.integers(0, 50))
def test_more_requests_ahead_never_promise_an_earlier_first_token(few: int, more: int) -> None:
    few, more = sorted((few, more))
    assert predict(ASK, Ahead(0, few), FLEET).ttft_s <= predict(ASK, Ahead(0, more), FLEET).ttft_s


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_longer_prompts_take_longer(short: int, longer: int) -> None:
    short, longer = sorted((short, longer))
    one, other = (predict(replace(ASK, prompt_tokens=n), Ahead(0, 0), FLEET) for n in (short, longer))
    assert one.ttft_s <= other.ttft_s


def test_second_prefill_worker_halves_the_wait() -> None:
    alone = predict(ASK, Ahead(6400, 0), FLEET)
    both = predict(ASK, Ahead(6400, 0), replace(FLEET, prefill=(PREFILL, PREFILL)))
    assert both.wait_s == pytest.approx(alone.wait_s / 2)


def test_cached_prefix_is_not_computed_again() -> None:
    cold = predict(ASK, Ahead(0, 0), FLEET)
    warm = predict(replace(ASK, cached_tokens=96), Ahead(0, 0), FLEET)
    assert warm.ttft_s < cold.ttft_s


def test_full_decode_workers_make_a_request_wait_for_sequences_to_end() -> None:
    full = replace(DECODE, num_seqs=8, context_tokens=800)
    free = predict(ASK, Ahead(0, 0), FLEET)
    waiting = predict(ASK, Ahead(0, 0), replace(FLEET, decode=(full,)))
    one_end_s = 50 * decode_step_s(full, 8) / 8
    assert free.wait_s == 0
    assert waiting.wait_s == pytest.approx(one_end_s)


def test_missing_blocks_make_a_request_wait_too() -> None:
    short = replace(DECODE, free_blocks=0)
    assert predict(ASK, Ahead(0, 0), replace(FLEET, decode=(short,))).wait_s > 0


def test_tpot_is_that_of_the_batch_it_will_join_not_of_the_one_that_runs() -> None:
    now = predict(ASK, Ahead(0, 0), FLEET)
    behind_three = predict(ASK, Ahead(0, 3), FLEET)
    assert (now.batch_size, behind_three.batch_size) == (5, 8)
    assert behind_three.tpot_s > now.tpot_s


def test_prompts_that_share_the_steps_slow_the_decodes() -> None:
    shared = replace(FLEET, prefill=(replace(PREFILL, num_decodes=4, decode_context=400),), aggregated=True)
    idle = predict(ASK, Ahead(0, 0), shared)
    busy = predict(ASK, Ahead(0, 0), replace(shared, prefill_load=0.8))
    assert busy.tpot_s > idle.tpot_s


@given(st.integers(1, 64), st.floats(0.0001, 1.0))
def test_seat_limit_is_the_largest_batch_within_the_time(most: int, tpot_s: float) -> None:
    limit = seq_capacity(DECODE, most, tpot_s)
    assert 1 <= limit <= most
    assert limit == 1 or decode_step_s(DECODE, limit) <= tpot_s
    assert limit == most or decode_step_s(DECODE, limit + 1) > tpot_s


def test_worker_that_measured_nothing_still_gets_a_prediction() -> None:
    nothing = CostModel((0.0,) * 6, 0.0)
    fleet = FleetView((replace(PREFILL, cost=nothing),), (replace(DECODE, cost=nothing),), aggregated=False)
    assert predict(ASK, Ahead(100, 1), fleet).ttft_s > 0


def test_before_anything_was_seen_the_prior_speaks() -> None:
    q10, q90 = LearntRatios().quantiles(0, now=0.0)
    assert (q10, q90) == (min(PRIOR), max(PRIOR))


def test_ratios_are_learnt_by_work_ahead() -> None:
    learnt = LearntRatios()
    for _ in range(ENOUGH):
        learnt.add(0, 1.0, now=0.0)
        learnt.add(5000, 3.0, now=0.0)
    assert learnt.quantiles(0, now=1.0) == (1.0, 1.0)
    assert learnt.quantiles(5000, now=1.0) == (3.0, 3.0)


def test_a_bucket_that_saw_little_asks_all_the_others() -> None:
    learnt = LearntRatios()
    for _ in range(ENOUGH):
        learnt.add(5000, 3.0, now=0.0)
    assert learnt.quantiles(0, now=1.0) == (3.0, 3.0)


def test_a_bad_minute_is_forgotten_even_when_nothing_was_admitted_since() -> None:
    learnt = LearntRatios()
    for _ in range(50):
        learnt.add(0, 100.0, now=0.0)
    assert learnt.quantiles(0, now=1.0)[1] == 100.0
    assert learnt.quantiles(0, now=MAX_AGE_S + 1)[1] == max(PRIOR)


@given(st.lists(st.floats(0.01, 100), min_size=ENOUGH, max_size=60))
def test_late_quantile_covers_nine_of_ten(ratios: list[float]) -> None:
    learnt = LearntRatios()
    for ratio in ratios:
        learnt.add(0, ratio, now=0.0)
    q10, q90 = learnt.quantiles(0, now=0.0)
    assert q10 <= q90
    assert sum(ratio <= q90 for ratio in ratios) >= 0.9 * len(ratios)


def test_output_lengths_are_learnt_and_capped() -> None:
    lengths = OutputLengths()
    for _ in range(100):
        lengths.add(40)
    assert lengths.expected(1000, ignore_eos=False) == pytest.approx(40, abs=1)
    assert lengths.expected(10, ignore_eos=False) == 10
    assert lengths.expected(1000, ignore_eos=True) == 1000
