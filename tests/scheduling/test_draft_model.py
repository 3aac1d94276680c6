"""A draft model drafts and catches up as far as it is expected to save more than it takes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scheduling.cost_model import UNKNOWN_COST, CostModel, StepShape
from scheduling.draft_model import NEARLY, DraftPlan, FollowedCost, ModelOffer, plan_drafts
from scheduling.speculation import MOST_DRAFTS
from scheduling.step import DecodeLoad
from tests.scheduling.test_speculation import COSTS, RATES

MODEL = CostModel((1.0, 0.0, 0.0, 0.0, 0.0, 0.0), 0.0)
"""A step takes a second, whatever it computes."""


def draft_cost(step_s: float, token_s: float = 0.0) -> CostModel:
    return CostModel((step_s, 0.0, token_s, 0.0, 0.0, 0.0), 0.0)


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[ModelOffer], StepShape, DecodeLoad]:
    num_rows = draw(st.integers(1, 12))
    offers = []
    for row in sorted(draw(st.sets(st.integers(0, num_rows - 1), min_size=1))):
        context = draw(st.integers(1, 3000))
        computed = draw(st.integers(max(0, context - 2 * NEARLY), context - 1) | st.integers(0, context - 1))
        num_left = draw(st.integers(2, 2000))
        num_tokens = min(num_left - 1, draw(st.integers(1, MOST_DRAFTS)))
        offers.append(ModelOffer(row, context, computed, num_tokens, num_left, draw(RATES)))
    context = draw(st.integers(num_rows, 9000))
    slack, gap = (draw(st.floats(0, 3) | st.just(float("inf"))) for _ in range(2))
    return offers, StepShape.of(num_rows, context, ()), DecodeLoad(num_rows, context, slack, gap)


def seconds_q95(
    plan: DraftPlan, offers: list[ModelOffer], shape: StepShape, costs: tuple[CostModel, CostModel]
) -> float:
    """Return what is planned, summed up by hand."""
    cost, drafting = costs
    drafting_s = 0.0
    of_row = {offer.row: offer for offer in offers}
    for place in range(max(plan.lengths.values(), default=0)):
        going = [of_row[row] for row, num in plan.lengths.items() if num > place]
        if place:
            work = StepShape.of(len(going), sum(offer.num_context_tokens + place for offer in going), ())
        else:
            alone = [offer for offer in going if offer.num_behind == 1]
            chunks = [(o.num_computed_tokens, o.num_behind) for o in going if o.num_behind > 1]
            work = StepShape.of(len(alone), sum(offer.num_context_tokens for offer in alone), chunks)
        drafting_s += drafting.predict_q95(work)
    if plan.catch_up is not None:
        row, num = plan.catch_up
        drafting_s += drafting.predict_q95(StepShape.of(0, 0, [(of_row[row].num_computed_tokens, num)]))
    for row, num in plan.lengths.items():
        shape = shape.with_more(of_row[row].num_context_tokens, num)
    return drafting_s + cost.predict_q95(shape)


@given(step=steps(), costs=st.tuples(COSTS, COSTS), most=st.integers(0, 64), budget=st.integers(1, 300))
def test_drafting_stays_within_the_budget_and_the_promises(
    step: tuple[list[ModelOffer], StepShape, DecodeLoad],
    costs: tuple[CostModel, CostModel],
    most: int,
    budget: int,
) -> None:
    offers, shape, decodes = step
    plan = plan_drafts(offers, shape, decodes, costs, most=most, token_budget=budget)
    of_row = {offer.row: offer for offer in offers}
    assert all(0 < num <= of_row[row].num_tokens for row, num in plan.lengths.items())
    assert all(of_row[row].num_behind <= NEARLY for row in plan.lengths)
    assert sum(plan.lengths.values()) <= most
    if plan.catch_up is not None:
        row, num = plan.catch_up
        assert row not in plan.lengths
        assert 0 < num <= min(budget, of_row[row].num_behind)
    if plan.lengths or plan.catch_up:
        seconds = seconds_q95(plan, offers, shape, costs)
        assert seconds <= decodes.gap_limit_s + 1e-6
        assert len(plan.lengths) == decodes.num_seqs or seconds <= decodes.slack_s + 1e-6


@given(step=steps(), costs=st.tuples(COSTS, COSTS))
def test_drafts_are_expected_to_save_more_than_they_take(
    step: tuple[list[ModelOffer], StepShape, DecodeLoad], costs: tuple[CostModel, CostModel]
) -> None:
    offers, shape, decodes = step
    costs = replace(costs[0], is_trusted=True), replace(costs[1], is_trusted=True)
    decodes = DecodeLoad(decodes.num_seqs, decodes.context_tokens)
    plan = plan_drafts(offers, shape, decodes, costs, most=64, token_budget=256)
    token_s = costs[0].predict(StepShape.of(decodes.num_seqs, decodes.context_tokens, ())) / decodes.num_seqs
    accepted = sum(
        sum(offer.acceptance**num for num in range(1, plan.lengths.get(offer.row, 0) + 1)) for offer in offers
    )
    without_catching_up = DraftPlan(plan.lengths)
    taken_s = seconds_q95(without_catching_up, offers, shape, costs) - costs[0].predict_q95(shape)
    assert accepted * token_s >= taken_s - 1e-6


def offer(row: int, rate: float = 0.9, behind: int = 1, left: int = 1000) -> ModelOffer:
    return ModelOffer(row, 3000, 3000 - behind, 16, left, rate)


def plan(
    offers: list[ModelOffer], drafting: CostModel, num_seqs: int = 0, cost: CostModel = MODEL
) -> DraftPlan:
    num = num_seqs or len(offers)
    decodes = DecodeLoad(num, 3000 * num)
    return plan_drafts(
        offers, StepShape.of(num, 3000 * num, ()), decodes, (cost, drafting), most=64, token_budget=256
    )


def test_a_draft_is_as_long_as_its_last_token_pays_for_a_round() -> None:
    assert plan([offer(0)], draft_cost(0.5)).lengths == {0: 6}  # 0.9⁶ > 0.5 > 0.9⁷
    assert plan([offer(0)], draft_cost(0.95)).lengths == {}


def test_rows_share_the_costs_of_a_round() -> None:
    """With 4 rows a token saves a quarter of a second."""
    assert plan([offer(0)], draft_cost(0.5), num_seqs=4).lengths == {}
    assert plan([offer(row) for row in range(4)], draft_cost(0.5)).lengths == dict.fromkeys(range(4), 6)


def test_a_row_that_gains_nothing_takes_no_part() -> None:
    lengths = plan([offer(0), offer(1, 0.05)], draft_cost(0.1, 0.05)).lengths
    assert lengths.keys() == {0}


def test_catching_up_has_to_be_repaid_by_the_tokens_that_are_left() -> None:
    """Catching up with 100 tokens takes 10 seconds; a token that is accepted saves one."""
    drafting = draft_cost(0.1, 0.1)
    assert plan([offer(0, behind=100, left=1000)], drafting).catch_up == (0, 100)
    assert plan([offer(0, behind=100, left=10)], drafting).catch_up is None
    assert plan([offer(0, 0.1, behind=100)], drafting).catch_up is None


def test_the_row_that_is_ready_first_catches_up_first_and_in_chunks() -> None:
    offers = [offer(0, behind=900), offer(1, behind=500), offer(2)]
    found = plan(offers, draft_cost(0.1))
    assert found.catch_up == (1, 256)
    assert found.lengths.keys() == {2}


def test_a_chunk_fits_before_the_earliest_token_is_due_or_waits() -> None:
    """Without it the step lasts a second; each token of a chunk takes 10 ms."""
    offers, shape = [offer(0, behind=900)], StepShape.of(2, 6000, ())
    chosen = []
    for slack_s in (4.0, 1.7, 1.1):
        decodes = DecodeLoad(2, 6000, slack_s)
        costs = MODEL, draft_cost(0.0, 0.01)
        chosen.append(plan_drafts(offers, shape, decodes, costs, most=64, token_budget=256).catch_up)
    assert chosen == [(0, 256), (0, 64), None]


def test_costs_that_are_not_trusted_leave_the_rule_of_likely_tokens() -> None:
    assert plan([offer(0)], UNKNOWN_COST).lengths == {0: 6}  # 0.9⁶ > 0.5 > 0.9⁷
    assert plan([offer(0, 0.4)], UNKNOWN_COST).lengths == {}
    assert plan([offer(0, behind=200)], UNKNOWN_COST).catch_up == (0, 200)


def test_costs_follow_the_level_of_the_steps() -> None:
    followed = FollowedCost(draft_cost(0.1))
    shape = StepShape.of(1, 10, ())
    for _ in range(200):
        followed.observe(shape, 0.15)
    assert abs(followed.model.predict(shape) - 0.15) < 0.01
    for seconds in (0.0, 1e9, float("nan")):
        followed.observe(shape, seconds)
    assert abs(followed.model.predict(shape) - 0.15) < 0.01


def test_costs_that_prevent_all_steps_are_doubted_until_the_next_one() -> None:
    followed = FollowedCost(draft_cost(5.0))
    shape = StepShape.of(1, 10, ())
    for _ in range(1000):
        followed.doubt()
    assert followed.model.predict(shape) < 1.0
    for _ in range(3):
        followed.observe(shape, 5.0)
    assert followed.model.predict(shape) > 4.8
    for _ in range(8):
        followed.observe(shape, 0.2)
    assert followed.model.predict(shape) < 2.0
