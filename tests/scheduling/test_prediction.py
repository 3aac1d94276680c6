"""Predictions move the way the world does, and ratios are learnt and forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.cost_model import Band, CostModel, StepShape
from scheduling.packing import GRAIN_TOKENS
from scheduling.prediction import (
    Capacity,
    DecodeView,
    Prediction,
    PrefillView,
    QueueAhead,
    RequestCost,
    capacity_of,
    chunk_tokens,
    decode_speed,
    decode_step_s,
    free_seats,
    mixed_step_s,
    own_prefill_s,
    predict,
    prefill_speed,
    seq_capacity,
)

COST = CostModel((0.002, 0.0001, 0.0001, 1e-7, 1e-8, 1e-8), 8)
PREFILL = PrefillView(COST, token_budget=64)
DECODE = DecodeView(COST, 4, 400, seq_capacity=8, free_blocks=100, mean_remaining_tokens=50, mean_blocks=10)


@dataclass(frozen=True)
class Fleet:
    prefill: Sequence[PrefillView]
    decode: Sequence[DecodeView]

    @property
    def capacity(self) -> Capacity:
        return capacity_of(
            [prefill_speed(entry) for entry in self.prefill], [decode_speed(entry) for entry in self.decode]
        )


FLEET = Fleet((PREFILL,), (DECODE,))
ASK = RequestCost(prompt_tokens=100, cached_tokens=0, blocks=10, num_seqs=1)

tokens = st.integers(0, 10_000)
costs = st.builds(
    CostModel,
    st.tuples(*[st.floats(0, 0.01)] * 3, *[st.floats(0, 1e-5)] * 3),
    st.integers(0, 200).map(float),
)


def foresee(ask: RequestCost, ahead: QueueAhead, fleet: Fleet, load: float = 0.0) -> Prediction:
    return predict(ask, ahead, fleet.capacity, load)


@given(tokens, tokens)
def test_more_work_ahead_never_promises_an_earlier_first_token(few: int, more: int) -> None:
    few, more = sorted((few, more))
    assert foresee(ASK, QueueAhead(few, 0), FLEET).ttft_s <= foresee(ASK, QueueAhead(more, 0), FLEET).ttft_s


@given(st.integers(0, 50), st.integers(0, 50))
def test_more_requests_ahead_never_promise_an_earlier_first_token(few: int, more: int) -> None:
    few, more = sorted((few, more))
    assert foresee(ASK, QueueAhead(0, few), FLEET).ttft_s <= foresee(ASK, QueueAhead(0, more), FLEET).ttft_s


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_longer_prompts_take_longer(short: int, longer: int) -> None:
    short, longer = sorted((short, longer))
    one, other = (foresee(replace(ASK, prompt_tokens=n), QueueAhead(0, 0), FLEET) for n in (short, longer))
    assert one.ttft_s <= other.ttft_s


def test_second_prefill_worker_halves_the_wait() -> None:
    alone = foresee(ASK, QueueAhead(6400, 0), FLEET)
    both = foresee(ASK, QueueAhead(6400, 0), replace(FLEET, prefill=(PREFILL, PREFILL)))
    rest_s = FLEET.capacity.quickest.step_s / 2
    assert both.wait_s - rest_s == pytest.approx((alone.wait_s - rest_s) / 2)


def test_cached_prefix_is_not_computed_again() -> None:
    cold = foresee(ASK, QueueAhead(0, 0), FLEET)
    warm = foresee(replace(ASK, cached_tokens=96), QueueAhead(0, 0), FLEET)
    assert warm.ttft_s < cold.ttft_s


def test_full_decode_workers_make_a_request_wait_for_sequences_to_end() -> None:
    full = replace(DECODE, num_seqs=8, context_tokens=800)
    free = foresee(ASK, QueueAhead(0, 0), FLEET)
    waiting = foresee(ASK, QueueAhead(0, 0), replace(FLEET, decode=(full,)))
    one_end_s = 50 * decode_step_s(full, 8) / 8
    assert free.wait_s == 0
    assert waiting.wait_s == pytest.approx(one_end_s)


def test_missing_blocks_make_a_request_wait_too() -> None:
    short = replace(DECODE, free_blocks=0)
    assert foresee(ASK, QueueAhead(0, 0), replace(FLEET, decode=(short,))).wait_s > 0


def test_tpot_is_of_the_batch_it_will_join_not_of_the_running_one() -> None:
    now = foresee(ASK, QueueAhead(0, 0), FLEET)
    behind_three = foresee(ASK, QueueAhead(0, 3), FLEET)
    assert (now.batch_size, behind_three.batch_size) == (5, 8)
    assert behind_three.tpot_s > now.tpot_s


def test_prompts_that_share_the_steps_slow_the_decodes() -> None:
    own = replace(PREFILL, num_decodes=4, decode_context=400)
    shared = Fleet((own,), (replace(DECODE, prefill=own),))
    idle = foresee(ASK, QueueAhead(0, 0), shared)
    busy = foresee(ASK, QueueAhead(0, 0), shared, 0.8)
    assert busy.tpot_s > idle.tpot_s


@given(st.integers(1, 64), st.floats(0.0001, 1.0))
def test_seat_limit_is_the_largest_batch_within_the_time(most: int, tpot_s: float) -> None:
    limit = seq_capacity(DECODE, most, tpot_s)
    assert 1 <= limit <= most
    assert limit == 1 or decode_step_s(DECODE, limit) <= tpot_s
    assert limit == most or decode_step_s(DECODE, limit + 1) > tpot_s


def test_worker_that_measured_nothing_still_gets_a_prediction() -> None:
    nothing = CostModel((0.0,) * 6, 0.0)
    fleet = Fleet((replace(PREFILL, cost=nothing),), (replace(DECODE, cost=nothing),))
    assert foresee(ASK, QueueAhead(100, 1), fleet).ttft_s > 0


@given(costs, st.integers(1, 500), st.integers(0, 400), st.integers(0, 100), st.integers(0, 20))
def test_own_prompt_costs_what_its_chunks_cost(
    cost: CostModel, prompt: int, cached: int, context: int, decodes: int
) -> None:
    view = PrefillView(cost, token_budget=64, num_decodes=decodes, decode_context=context)
    done = min(cached, prompt - 1)
    expected = 0.0
    while done < prompt:
        size = min(64 - decodes, prompt - done)
        expected += cost.predict(StepShape.of(decodes, context, ((done, size),)))
        done += size
    ask = RequestCost(prompt, cached, 1, 1)
    assert own_prefill_s(ask, prefill_speed(view)) == pytest.approx(expected, abs=1e-3)


@given(costs, st.integers(0, 60), st.floats(1e-4, 1.0))
def test_a_full_step_is_the_longest_within_its_limit(cost: CostModel, decodes: int, limit_s: float) -> None:
    view = PrefillView(cost, token_budget=2048, num_decodes=decodes, limit_s=limit_s)
    tokens = chunk_tokens(view)
    assert min(GRAIN_TOKENS, 2048 - decodes) <= tokens <= 2048 - decodes
    assert tokens == GRAIN_TOKENS or mixed_step_s(view, tokens) <= limit_s * (1 + 1e-9)
    assert tokens == 2048 - decodes or mixed_step_s(view, tokens + 1) >= limit_s * (1 - 1e-9)


def test_the_longest_gap_is_one_grain_or_a_full_step() -> None:
    def gap_s(limit_s: float) -> float:
        own = PrefillView(COST, 256, num_decodes=4, decode_context=400, limit_s=limit_s)
        return foresee(ASK, QueueAhead(0, 0), Fleet((own,), (replace(DECODE, prefill=own),))).itl_s

    assert gap_s(0.01) < gap_s(float("inf"))
    alone_s = foresee(ASK, QueueAhead(0, 0), FLEET).itl_s
    assert alone_s < gap_s(0.01)
    late = replace(DECODE, cost=replace(COST, ratio_q95=2.0))
    assert foresee(ASK, QueueAhead(0, 0), replace(FLEET, decode=(late,))).itl_s == pytest.approx(2 * alone_s)


def test_a_pace_is_kept_by_steps_that_the_host_makes_late_one_by_one() -> None:
    """The longest gap is judged by their late quantile, the mean of many gaps by their median."""
    launched = replace(COST, chunk_floor_s=0.025, chunk_band=Band(0.7, 1.0, 1.4))
    own = PrefillView(launched, 256, num_decodes=4, decode_context=400, limit_s=0.03)
    fleet = Fleet((own,), (replace(DECODE, cost=launched, prefill=own),))
    found = foresee(ASK, QueueAhead(0, 0), fleet)
    assert found.itl_s == pytest.approx(0.035)
    assert found.least_pace_s == pytest.approx(0.025)


@given(st.lists(st.integers(-10, 10), min_size=1, max_size=8))
def test_crowded_workers_leave_free_seats_and_wait_for_ends(
    by_worker: list[int],
) -> None:
    free = free_seats(by_worker)
    if max(by_worker) > 0:
        assert free == sum(max(0, seats) for seats in by_worker)
    else:
        assert free == max(by_worker) * len(by_worker)


def test_seats_that_promises_took_back_are_waited_for() -> None:
    full = replace(DECODE, num_seqs=8, context_tokens=800, seq_capacity=8)
    crowded = replace(full, seq_capacity=5)
    waits_s = [
        foresee(ASK, QueueAhead(0, 0), replace(FLEET, decode=(entry,))).wait_s for entry in (full, crowded)
    ]
    assert waits_s[1] == pytest.approx(4 * waits_s[0])
    assert foresee(ASK, QueueAhead(0, 0), replace(FLEET, decode=(full,))).waits_for_slot
    assert not foresee(ASK, QueueAhead(0, 0), FLEET).waits_for_slot
