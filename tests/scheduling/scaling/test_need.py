"""How many workers are needed: enough, no more, and by what each role has to do."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.cost_model import UNKNOWN_COST
from scheduling.placement import Placement
from scheduling.scaling.demand import EMPTY, SLOT_S, Slot, of_row, total
from scheduling.scaling.need import (
    IDLE,
    Goal,
    Need,
    Why,
    decode_needed,
    exceeded,
    mean_slot,
    prefill_needed,
    typical,
)
from scheduling.scaling.steady import (
    Sequences,
    WorkerModel,
    alive,
    first_tokens,
    mean_sequence,
    prompt_speed,
    seats_found,
    step_s,
    tightest_pace_s,
    work_s,
)
from scheduling.scaling.steady_span import steady_span
from tests.growth import LARGE, SMALL
from tests.growth import MOST_GROWTH as MOST_COST
from tests.growth import growth as cost_growth
from tests.scheduling.scaling.drawn_slots import WORKER, poisson, request

GOAL = Goal()
APART = (Placement.DISAGGREGATED, Placement.CONDITIONAL)

shapes = st.builds(request, st.integers(16, 8000), st.integers(1, 1500))
loads = st.builds(poisson, st.floats(0.1, 80), shapes, st.just(40), st.integers(0, 9))


def prefill(slots: Sequence[Slot], goal: Goal = GOAL) -> int:
    return prefill_needed(slots, WORKER, Placement.DISAGGREGATED, goal).workers


def decode(slots: Sequence[Slot], goal: Goal = GOAL) -> int:
    return decode_needed(slots, WORKER, Placement.DISAGGREGATED, goal).workers


def mixed(slots: Sequence[Slot], goal: Goal = GOAL) -> int:
    return decode_needed(slots, WORKER, Placement.AGGREGATED, goal).workers


def times(slots: Sequence[Slot], by: float) -> list[Slot]:
    return [of_row([number * by for number in slot.row]) for slot in slots]


@given(loads)
@settings(max_examples=40)
def test_so_many_keep_the_promises_and_one_less_does_not(slots: list[Slot]) -> None:
    if not any(slot.prompts for slot in slots):
        return
    now = mean_slot(slots[-steady_span(slots) :])
    before = exceeded(slots, lambda slot: slot.prompt_tokens)
    kept = [first_tokens(mean, prompt_speed(WORKER)) for mean in (now, before)]
    num = prefill_needed(slots, WORKER, Placement.DISAGGREGATED, GOAL).workers
    assert all(share(num) >= GOAL.goodput for share in kept)
    assert num == 1 or any(share(num - 1) < GOAL.goodput for share in kept)
    before = exceeded(slots, lambda slot: slot.sequences)
    kept = [seats_found(mean, WORKER, sequences_of(mean)) for mean in (now, before)]
    num = decode_needed(slots, WORKER, Placement.DISAGGREGATED, GOAL).workers
    assert all(share(num) >= GOAL.goodput for share in kept)
    assert num == 1 or any(share(num - 1) < GOAL.goodput for share in kept)


def sequences_of(mean: Slot) -> Sequences:
    return mean_sequence(mean, WORKER, tightest_pace_s(mean, 1 - GOAL.goodput))


@given(st.floats(0.1, 200), st.integers(1, 1500), st.integers(1, 40))
def test_as_many_sequences_run_as_begin_while_one_runs(rate: float, output: int, num_workers: int) -> None:
    mean = times([request(1700, output)], rate * SLOT_S)[0]
    each = sequences_of(mean)
    running, seats = alive(mean, WORKER, each, num_workers, 1.0), num_workers * each.seats
    lasts_s = output * step_s(WORKER, each, math.ceil(running / num_workers))
    assert running <= seats
    # Batches are whole: each worker may have one more.
    assert running == seats or rate * lasts_s == pytest.approx(running, rel=0.02, abs=num_workers)


@given(loads, st.floats(1, 4))
@settings(max_examples=40)
def test_more_load_never_needs_fewer(slots: list[Slot], by: float) -> None:
    for needs in (prefill, decode):
        assert needs(times(slots, by)) >= needs(slots)


@given(st.floats(0.5, 60), st.integers(16, 8000), st.integers(1, 1500), st.floats(1, 4), st.integers(0, 9))
@settings(max_examples=40)
def test_looser_promises_never_need_more(
    rate: float, prompt: int, output: int, looser: float, seed: int
) -> None:
    strict = poisson(rate, request(prompt, output, 0.4, 0.02), seed=seed)
    loose = poisson(rate, request(prompt, output, 0.4 * looser, 0.02 * looser), seed=seed)
    assert prefill(loose) <= prefill(strict)
    assert decode(loose) <= decode(strict)


@given(loads)
@settings(max_examples=40)
def test_never_fewer_than_the_work_of_the_steady_time_fills(slots: list[Slot]) -> None:
    span = steady_span(slots)
    whole = total(slots[-span:])
    work = work_s(whole.prompt_tokens, whole.prompt_squares, prompt_speed(WORKER))
    assert prefill(slots) >= work / (span * SLOT_S) - 1e-9


def test_prompts_without_a_promise_are_computed_all_the_same() -> None:
    slots = poisson(40, request(4000, 1, None, None))
    assert prefill(slots) >= 40 * 4000 / prompt_speed(WORKER).rate


@pytest.mark.parametrize("placement", APART)
def test_prefill_scales_with_prompts_and_decode_does_not(placement: Placement) -> None:
    # A prompt-heavy load that a scaler watching decode workers does not see.
    counts = []
    for rate in (2, 10, 20, 40):
        slots = poisson(rate, request(6000, 4, 2.0))
        counts.append(prefill_needed(slots, WORKER, placement, GOAL).workers)
        assert decode_needed(slots, WORKER, placement, GOAL).workers == 1
    assert counts == sorted(set(counts)), "prefill did not grow with every load"
    assert counts[-1] >= 6


def test_decode_scales_with_long_outputs_and_prefill_does_not() -> None:
    slots = poisson(10, request(16, 3000, 2.0))
    assert prefill(slots) == 1
    assert decode(slots) >= 3


def test_decode_workers_that_compute_prompts_count_for_both() -> None:
    slots = poisson(30, request(1700, 415))
    assert prefill_needed(slots, WORKER, Placement.AGGREGATED, GOAL) == Need(0, Why.IDLE)
    assert mixed(slots) >= max(prefill(slots), decode(slots))


@pytest.mark.parametrize("needs", [prefill, decode, mixed])
def test_nothing_is_needed_where_nothing_was_asked(needs: Callable[[Sequence[Slot]], int]) -> None:
    assert needs([]) == 0
    assert needs([EMPTY] * 60) == 0
    assert needs([*poisson(30, request(1700, 415), 10), *[EMPTY] * 60]) == 0, "it forgets nothing"


@pytest.mark.parametrize("needs", [prefill, decode, mixed])
def test_a_fleet_is_idle_after_five_minutes_without_a_request(
    needs: Callable[[Sequence[Slot]], int],
) -> None:
    busy = poisson(30, request(1700, 415), 180)
    assert needs([*busy, *[EMPTY] * (IDLE - 1)]) >= 1
    assert needs([*busy, *[EMPTY] * IDLE]) == 0


@pytest.mark.parametrize("needs", [prefill, decode])
@given(st.floats(0, 4), st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_a_burst_adds_what_it_fills_and_a_pause_takes_nothing(
    needs: Callable[[Sequence[Slot]], int], factor: float, seed: int
) -> None:
    slots = poisson(10, request(4000, 1500, 2.0), 180, seed)
    before, now = needs(slots[:-24]), needs([*slots[:-24], *times(slots[-24:], factor)])
    assert now >= before - 1
    if factor >= 3:
        assert now > before


@pytest.mark.parametrize("needs", [prefill, decode, mixed])
@given(st.integers(1, 36), st.integers(2, 40))
@settings(max_examples=15, deadline=None)
def test_a_pause_of_three_minutes_takes_nothing(
    needs: Callable[[Sequence[Slot]], int], num_slots: int, count: int
) -> None:
    busy = times([request(1700, 415)], 10 * count) * 180
    assert needs([*busy[num_slots:], *[EMPTY] * num_slots]) == needs(busy)


@pytest.mark.parametrize("needs", [prefill, decode, mixed])
def test_a_burst_counts_while_it_lasts_and_no_longer(needs: Callable[[Sequence[Slot]], int]) -> None:
    one = request(1700, 415)
    usual, burst = times([one], 300), times([one], 900)
    assert needs(usual * 168 + burst * 12) == needs(usual * 72 + burst * 108) == needs(burst * 180)
    assert needs(usual * 60 + burst * 108 + usual * 12) == needs(usual * 180)


def test_the_answer_costs_the_same_for_a_hundred_times_the_requests() -> None:
    one = request(1700, 415)

    def decided(num: int) -> Callable[[], object]:
        slots = times([one] * 180, num / 10)
        return lambda: (prefill(slots), decode(slots), mixed(slots))

    assert cost_growth(decided) < MOST_COST
    assert SMALL < LARGE


def test_the_typical_worker_is_the_middle_one_with_measured_steps() -> None:
    def costing(factor: float) -> WorkerModel:
        costs = WORKER.cost.coefficients
        cost = type(WORKER.cost)(tuple(factor * cost for cost in costs), WORKER.cost.knee_tokens)
        return WorkerModel(cost, 8192, 1000, 16, 64)

    unknown = WorkerModel(UNKNOWN_COST, 8192, 1000, 16, 64)
    one, two, nine = map(costing, (1, 2, 9))
    for order in itertools.permutations((unknown, one, two, nine)):
        assert typical(order) == two
    assert typical([unknown]) is None


@pytest.mark.parametrize("goodput", [1.0, 0.2, math.nan])
def test_a_goal_out_of_range_is_refused_by_its_name(goodput: float) -> None:
    with pytest.raises(ValueError, match=r"goodput is .*accepted: "):
        Goal(goodput)
