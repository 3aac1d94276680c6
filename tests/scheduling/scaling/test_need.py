"""How many workers are needed: enough, no more, and by what each role has to do."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scheduling.cost.cost_model import UNKNOWN_COST
from scheduling.placement import Placement
from scheduling.scaling.demand import EMPTY, SLOT_S, Slot, of_row, total
from scheduling.scaling.need import (
    MOST_GROWTH,
    Goal,
    Need,
    Why,
    decode_needed,
    growth,
    prefill_needed,
    typical,
)
from scheduling.scaling.replay import (
    WorkerModel,
    first_tokens,
    mean_sequence,
    prompt_speed,
    seats_found,
    tightest_pace_s,
    work_s,
)
from tests.growth import LARGE, SMALL
from tests.growth import MOST_GROWTH as MOST_COST
from tests.growth import growth as cost_growth
from tests.scheduling.scaling.drawn_slots import WORKER, poisson, request

STEADY = Goal(startup_s=0.0)
APART = (Placement.DISAGGREGATED, Placement.CONDITIONAL)

shapes = st.builds(request, st.integers(16, 8000), st.integers(1, 1500))
loads = st.builds(poisson, st.floats(0.1, 80), shapes, st.just(40), st.integers(0, 9))


def prefill(slots: Sequence[Slot], goal: Goal = STEADY) -> int:
    return prefill_needed(slots, WORKER, Placement.DISAGGREGATED, goal).workers


def decode(slots: Sequence[Slot], goal: Goal = STEADY) -> int:
    return decode_needed(slots, WORKER, Placement.DISAGGREGATED, goal).workers


def mixed(slots: Sequence[Slot], goal: Goal = STEADY) -> int:
    return decode_needed(slots, WORKER, Placement.AGGREGATED, goal).workers


def times(slots: Sequence[Slot], by: float) -> list[Slot]:
    return [of_row([number * by for number in slot.row]) for slot in slots]


@given(loads)
@settings(max_examples=40)
def test_so_many_keep_the_promises_and_one_less_does_not(slots: list[Slot]) -> None:
    num, speed = prefill(slots), prompt_speed(WORKER)
    if any(slot.prompts for slot in slots):
        kept = first_tokens(slots, speed)
        assert kept(num) >= STEADY.goodput
        assert num == 1 or kept(num - 1) < STEADY.goodput
        whole = total(slots)
        mean = mean_sequence(whole, WORKER, tightest_pace_s(whole, 1 - STEADY.goodput))
        num = decode(slots)
        kept = seats_found(slots, WORKER, mean)
        assert kept(num) >= STEADY.goodput
        assert num == 1 or kept(num - 1) < STEADY.goodput


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
def test_never_fewer_than_the_work_fills(slots: list[Slot]) -> None:
    whole = total(slots)
    assume(whole.prompts)
    work = work_s(whole.prompt_tokens, whole.prompt_squares, prompt_speed(WORKER))
    assert prefill(slots) >= work / (SLOT_S * len(slots))


def test_prompts_without_a_promise_are_computed_all_the_same() -> None:
    slots = poisson(40, request(4000, 1, None, None))
    assert prefill(slots) >= 40 * 4000 / prompt_speed(WORKER).rate


@pytest.mark.parametrize("placement", APART)
def test_prefill_scales_with_prompts_and_decode_does_not(placement: Placement) -> None:
    # A prompt-heavy load that a scaler watching decode workers does not see.
    counts = []
    for rate in (2, 10, 20, 40):
        slots = poisson(rate, request(6000, 4, 2.0))
        counts.append(prefill_needed(slots, WORKER, placement, STEADY).workers)
        assert decode_needed(slots, WORKER, placement, STEADY).workers == 1
    assert counts == sorted(set(counts)), "prefill did not grow with every load"
    assert counts[-1] >= 6


def test_decode_scales_with_long_outputs_and_prefill_does_not() -> None:
    slots = poisson(10, request(16, 3000, 2.0))
    assert prefill(slots) == 1
    assert decode(slots) >= 3


def test_decode_workers_that_compute_prompts_count_for_both() -> None:
    slots = poisson(30, request(1700, 415))
    assert prefill_needed(slots, WORKER, Placement.AGGREGATED, STEADY) == Need(0, Why.IDLE)
    assert mixed(slots) >= max(prefill(slots), decode(slots))


@pytest.mark.parametrize("needs", [prefill, decode, mixed])
def test_nothing_is_needed_where_nothing_was_asked(needs: Callable[[Sequence[Slot]], int]) -> None:
    assert needs([]) == 0
    assert needs([EMPTY] * 60) == 0
    assert needs([*poisson(30, request(1700, 415), 10), *[EMPTY] * 60]) == 0, "it forgets nothing"


@pytest.mark.parametrize("needs", [prefill, decode])
def test_a_rising_load_is_met_before_it_is_there(needs: Callable[..., int]) -> None:
    one = request(1700, 415)
    rising = [total([one] * (20 + 5 * place)) for place in range(60)]
    assert needs(rising, Goal(startup_s=120)) > needs(rising, STEADY)
    assert prefill_needed(rising, WORKER, Placement.DISAGGREGATED, Goal(startup_s=120)).why is Why.GROWTH


@given(st.lists(st.floats(0, 1e6), min_size=0, max_size=80), st.floats(0, 900))
def test_growth_is_never_a_shrinking_or_a_leap(loads: list[float], ahead_s: float) -> None:
    assert 1 <= growth(loads, ahead_s) <= MOST_GROWTH


@given(st.integers(0, 9))
def test_chance_alone_is_no_growth_worth_two_workers(seed: int) -> None:
    slots = poisson(30, request(1700, 415), seed=seed)
    assert prefill(slots, Goal(startup_s=120)) <= prefill(slots) + 1


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


@pytest.mark.parametrize(
    "given", [{"goodput": 1.0}, {"goodput": 0.2}, {"window_s": 5.0}, {"startup_s": -1.0}, {"window_s": 1e4}]
)
def test_a_goal_out_of_range_is_refused_by_its_name(given: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(given))} is .*accepted: "):
        Goal(**given)
