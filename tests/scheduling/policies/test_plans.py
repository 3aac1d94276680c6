"""Properties of the steps of every policy, and those of single ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.cost_model import NUM_COEFFICIENTS, CostModel, StepShape
from scheduling.packing import GRAIN_TOKENS
from scheduling.policies import NAMES, by_name, chunked, dynamic, orca, prefill_first, slack, static
from scheduling.prediction import ARRIVAL_S, FIXED_SHARE
from scheduling.step import NO_LIMIT_S, Chunk, DecodeLoad, PrefillWork, StepPlan, StepView

COST = CostModel((5e-3, 1e-5, 2e-5, 5e-8, 1e-10, 1e-9), 200.0, 0.9, 1.0, 1.1)
FREE = CostModel((0.0,) * NUM_COEFFICIENTS, 0.0)

seconds = st.floats(0.0, 0.3)
coefficients = st.tuples(
    st.floats(0, 0.02), st.floats(0, 1e-4), st.floats(0, 1e-4), st.floats(0, 1e-7), st.floats(0, 1e-8),
    st.floats(0, 1e-7),
)  # fmt: skip
costs = st.builds(
    CostModel,
    coefficients,
    st.floats(0, 500),
    ratio_q95=st.floats(1, 2),
    is_trusted=st.booleans(),
)
decode_loads = st.builds(
    DecodeLoad,
    num_seqs=st.integers(0, 300),
    context_tokens=st.integers(0, 500_000),
    slack_s=seconds | st.just(NO_LIMIT_S),
    gap_limit_s=seconds | st.just(NO_LIMIT_S),
)


@st.composite
def views(draw: st.DrawFn) -> StepView:
    works = st.builds(
        PrefillWork,
        key=st.just(0),
        num_remaining_tokens=st.integers(1, 4000),
        num_computed_tokens=st.integers(0, 9000),
        num_seqs=st.integers(1, 4),
        waited_s=st.floats(0, 0.2),
    )
    waiting = [replace(work, key=place) for place, work in enumerate(draw(st.lists(works, max_size=8)))]
    return StepView(
        draw(decode_loads), waiting, draw(st.integers(1, 9000)), draw(st.integers(1, 64)), draw(costs)
    )


def view_of(
    lengths: list[int], decodes: DecodeLoad | None = None, budget: int = 2048, seats: int = 64
) -> StepView:
    waiting = [PrefillWork(place, length) for place, length in enumerate(lengths)]
    return StepView(decodes or DecodeLoad(), waiting, budget, seats, COST)


def duration_s(view: StepView, plan: StepPlan) -> float:
    """Return the duration that 19 of 20 such steps stay within."""
    computed = [view.waiting[chunk.key].num_computed_tokens for chunk in plan.chunks]
    chunks = [(before, chunk.num_tokens) for before, chunk in zip(computed, plan.chunks, strict=True)]
    return view.cost.predict_q95(StepShape.of(plan.num_decodes, view.decodes.context_tokens, chunks))


@pytest.mark.parametrize("name", NAMES)
@given(view=views())
def test_chunks_are_the_first_in_order_and_of_what_remains(name: str, view: StepView) -> None:
    plan = by_name(name).plan(view)
    assert [chunk.key for chunk in plan.chunks] == list(range(len(plan.chunks)))
    assert all(1 <= chunk.num_tokens <= view.waiting[chunk.key].num_remaining_tokens for chunk in plan.chunks)


@pytest.mark.parametrize("name", NAMES)
@given(view=views())
def test_decodes_run_together_or_not_at_all(name: str, view: StepView) -> None:
    assert by_name(name).plan(view).num_decodes in (0, view.decodes.num_seqs)


@pytest.mark.parametrize("name", ["orca", "chunked", "slack", "static", "dynamic"])
@given(view=views())
def test_no_decode_waits_for_a_prompt(name: str, view: StepView) -> None:
    assert by_name(name).plan(view).num_decodes == view.decodes.num_seqs


@pytest.mark.parametrize("name", NAMES)
@given(view=views())
def test_an_idle_worker_starts_on_what_waits(name: str, view: StepView) -> None:
    idle = replace(view, decodes=DecodeLoad())
    plan = by_name(name).plan(idle)
    if not idle.waiting:
        assert plan == StepPlan(0)
    elif plan.chunks == ():
        assert name == "dynamic"
        assert 0 < plan.wait_s <= dynamic.WINDOW_S
        later = [replace(work, waited_s=work.waited_s + plan.wait_s) for work in idle.waiting]
        assert dynamic.plan(replace(idle, waiting=later)).chunks


@pytest.mark.parametrize("name", ["static", "dynamic", "orca", "prefill_first"])
@given(view=views())
def test_whole_prompts_are_never_cut(name: str, view: StepView) -> None:
    for chunk in by_name(name).plan(view).chunks:
        assert chunk.num_tokens == view.waiting[chunk.key].num_remaining_tokens


@pytest.mark.parametrize("name", ["static", "dynamic"])
@given(view=views())
def test_a_batch_has_at_most_the_sequences_it_may_have(name: str, view: StepView) -> None:
    chunks = by_name(name).plan(view).chunks
    assert len(chunks) <= 1 or sum(view.waiting[c.key].num_seqs for c in chunks) <= view.max_seqs


@pytest.mark.parametrize("name", ["static", "dynamic"])
@given(view=views())
def test_nothing_joins_a_batch_that_runs(name: str, view: StepView) -> None:
    plan = by_name(name).plan(view)
    assert not (plan.chunks and view.decodes.num_seqs)


@pytest.mark.parametrize("name", ["orca", "prefill_first"])
@given(view=views())
def test_only_the_first_whole_prompt_may_break_the_budget(name: str, view: StepView) -> None:
    plan = by_name(name).plan(view)
    used = plan.num_decodes + sum(chunk.num_tokens for chunk in plan.chunks)
    assert len(plan.chunks) <= 1 or used <= view.token_budget


@given(views())
def test_decodes_pause_for_prompts_only_in_prefill_first(view: StepView) -> None:
    plan = prefill_first.plan(view)
    assert plan.num_decodes == (0 if view.waiting else view.decodes.num_seqs)
    assert bool(plan.chunks) == bool(view.waiting)


@given(views())
def test_slack_and_chunked_keep_to_the_budget(view: StepView) -> None:
    for plan in (chunked.plan(view), slack.plan(view)):
        scheduled = sum(chunk.num_tokens for chunk in plan.chunks)
        assert scheduled == 0 or plan.num_decodes + scheduled <= view.token_budget


@given(views())
def test_a_slack_step_lasts_as_promises_allow_or_one_grain(view: StepView) -> None:
    plan = slack.plan(view)
    if not plan.chunks or not view.cost.is_trusted or slack.duration_s(view) == NO_LIMIT_S:
        return
    grain = replace(plan, chunks=(Chunk(plan.chunks[0].key, GRAIN_TOKENS),))
    assert duration_s(view, plan) <= max(slack.duration_s(view), duration_s(view, grain)) + 1e-12


@given(views())
def test_slack_always_progresses_where_the_buffers_have_room(view: StepView) -> None:
    if view.waiting and view.decodes.num_seqs < view.token_budget:
        assert slack.plan(view).chunks


@given(views())
def test_slack_leaves_no_grain_out_that_would_have_fitted(view: StepView) -> None:
    plan = slack.plan(view)
    if not plan.chunks or not view.cost.is_trusted:
        return
    last = plan.chunks[-1]
    more = replace(plan, chunks=(*plan.chunks[:-1], Chunk(last.key, last.num_tokens + GRAIN_TOKENS)))
    used = plan.num_decodes + sum(chunk.num_tokens for chunk in plan.chunks)
    if last.num_tokens + GRAIN_TOKENS <= view.waiting[last.key].num_remaining_tokens:
        assert used + GRAIN_TOKENS > view.token_budget or duration_s(view, more) > slack.duration_s(view)


@given(views())
def test_a_cut_of_slack_is_whole_grains_unless_the_buffers_have_less(view: StepView) -> None:
    if not view.cost.is_trusted or slack.duration_s(view) == NO_LIMIT_S or not any(view.cost.coefficients):
        return
    room = view.token_budget - view.decodes.num_seqs
    for chunk in slack.plan(view).chunks:
        if chunk.num_tokens < view.waiting[chunk.key].num_remaining_tokens:
            assert chunk.num_tokens % GRAIN_TOKENS == 0 or room < GRAIN_TOKENS
        room -= chunk.num_tokens


def test_a_window_is_kept_open_for_what_is_left_of_it() -> None:
    view = view_of([10, 10])
    waiting = [replace(view.waiting[0], waited_s=0.03), view.waiting[1]]
    plan = dynamic.plan(replace(view, waiting=waiting))
    assert plan.chunks == ()
    assert plan.wait_s == pytest.approx(0.02)


def test_a_full_batch_does_not_wait() -> None:
    assert len(dynamic.plan(view_of([10, 10], seats=2)).chunks) == 2


def test_a_static_batch_is_prefilled_at_once_beyond_the_budget() -> None:
    assert static.plan(view_of([2000, 2000, 5], budget=1000, seats=2)) == StepPlan(
        0, (Chunk(0, 2000), Chunk(1, 2000))
    )


def test_orca_mixes_a_whole_prompt_into_the_decodes() -> None:
    view = view_of([3000, 10], DecodeLoad(5, 100), budget=1000)
    assert orca.plan(view) == StepPlan(5, (Chunk(0, 3000),))


def test_promised_decodes_cut_the_chunk_and_patient_ones_do_not() -> None:
    strict = view_of([4000], DecodeLoad(8, 8000, slack_s=0.5, gap_limit_s=0.012), budget=8192)
    patient = replace(strict, decodes=replace(strict.decodes, gap_limit_s=0.2))
    unpromised = replace(strict, decodes=DecodeLoad(8, 8000))
    sizes = [slack.plan(view).chunks[0].num_tokens for view in (strict, patient, unpromised)]
    assert sizes == [448, 4000, 4000]


def test_without_decodes_a_step_lasts_until_an_arrival_may_get_in() -> None:
    view = view_of([20_000], budget=16_384)
    plan = slack.plan(view)
    assert 0.9 * ARRIVAL_S < duration_s(view, plan) <= ARRIVAL_S


def test_without_decodes_a_step_spends_little_on_what_any_costs() -> None:
    laptop = CostModel((0.02, 0.0, 1e-3, 0.0, 0.0, 0.0), knee_tokens=0)
    sizes = []
    for cost in (laptop, laptop.scaled(10), laptop.scaled(0.01)):
        [chunk] = slack.plan(replace(view_of([20_000], budget=4096), cost=cost)).chunks
        sizes.append(chunk.num_tokens)
        seconds = cost.predict(StepShape.of(0, 0, [(0, chunk.num_tokens)]))
        assert seconds <= ARRIVAL_S or cost.fixed_s >= 0.9 * FIXED_SHARE * seconds
    assert sizes == [320, 320, 4096]


@pytest.mark.parametrize("cost", [FREE, replace(COST, is_trusted=False)])
def test_slack_keeps_to_the_fixed_budget_where_costs_are_not_known(cost: CostModel) -> None:
    view = replace(view_of([5000], DecodeLoad(8, 8000, 0.001, 0.001)), cost=cost)
    assert slack.plan(view) == chunked.plan(view) == StepPlan(8, (Chunk(0, 2040),))


def test_a_later_prompt_pays_for_its_own_context() -> None:
    decodes = DecodeLoad(8, 8000, 0.02, 0.02)
    fresh = view_of([100, 5000], decodes, budget=8192)
    deep = replace(fresh, waiting=[fresh.waiting[0], replace(fresh.waiting[1], num_computed_tokens=100_000)])
    assert slack.plan(deep).chunks[1].num_tokens < slack.plan(fresh).chunks[1].num_tokens


def test_a_step_of_prompts_alone_delays_no_decodes_of_others() -> None:
    """On a pipeline, a step may have no decodes while those of other steps wait behind it."""
    waiting = DecodeLoad(num_seqs=0, slack_s=0.02, gap_limit_s=0.02)
    assert slack.duration_s(view_of([4000], waiting)) == 0.02
    assert slack.duration_s(view_of([4000])) == ARRIVAL_S
