"""A draft is as long as it is expected to save more than it takes, within what promises allow."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from scheduling.cost_model import CostModel, StepShape
from scheduling.speculation import MOST_DRAFTS, Acceptance, Offer, draft_lengths
from scheduling.step import DecodeLoad

COSTS = st.builds(
    CostModel,
    st.tuples(*[st.floats(0, 1)] * 2, st.floats(0, 0.1), *[st.floats(0, 1e-4)] * 3),
    st.floats(0, 64),
    is_trusted=st.booleans(),
)
RATES = st.floats(0.01, 0.99)


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[Offer], StepShape, DecodeLoad]:
    num_rows = draw(st.integers(1, 12))
    rows = draw(st.sets(st.integers(0, num_rows - 1), min_size=1))
    offers = [
        Offer(row, draw(st.integers(1, 4000)), draw(st.integers(1, 30)), draw(RATES)) for row in sorted(rows)
    ]
    chunks = draw(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 200)), max_size=2))
    context = draw(st.integers(num_rows, 9000))
    slack, gap = draw(st.floats(0, 2)), draw(st.floats(0, 2))
    decodes = DecodeLoad(num_rows, context, slack, gap)
    return offers, StepShape.of(num_rows, context, chunks), decodes


def longer(shape: StepShape, offers: list[Offer], lengths: dict[int, int]) -> StepShape:
    for offer in offers:
        shape = shape.with_more(offer.num_context_tokens, lengths.get(offer.row, 0))
    return shape


@given(step=steps(), cost=COSTS, most=st.integers(0, 64))
def test_drafts_stay_within_the_budget_and_the_promises(
    step: tuple[list[Offer], StepShape, DecodeLoad], cost: CostModel, most: int
) -> None:
    offers, shape, decodes = step
    lengths = draft_lengths(offers, shape, decodes, cost, most)
    offered = {offer.row: offer.num_tokens for offer in offers}
    assert all(0 < num <= min(offered[row], MOST_DRAFTS) for row, num in lengths.items())
    assert sum(lengths.values()) <= most
    if lengths:
        seconds = cost.predict_q95(longer(shape, offers, lengths))
        assert seconds <= decodes.gap_limit_s + 1e-9
        assert len(offers) == decodes.num_seqs or seconds <= decodes.slack_s + 1e-9


@given(step=steps(), cost=COSTS)
def test_a_draft_is_expected_to_save_more_than_it_takes(
    step: tuple[list[Offer], StepShape, DecodeLoad], cost: CostModel
) -> None:
    offers, shape, decodes = step
    assume(cost.is_trusted)
    lengths = draft_lengths(offers, shape, decodes, cost, 64)
    token_s = cost.predict(StepShape.of(decodes.num_seqs, decodes.context_tokens, ())) / decodes.num_seqs
    accepted = sum(
        sum(offer.acceptance**num for num in range(1, lengths.get(offer.row, 0) + 1)) for offer in offers
    )
    added = cost.predict(longer(shape, offers, lengths)) - cost.predict(shape)
    assert accepted * token_s >= added - 1e-9


@given(offer=st.builds(Offer, st.just(0), st.integers(1, 4000), st.integers(1, 16), RATES), cost=COSTS)
def test_no_other_length_is_expected_to_save_more(offer: Offer, cost: CostModel) -> None:
    cost = replace(cost, is_trusted=True, chunk_floor_s=cost.coefficients[1])
    shape = StepShape.of(1, offer.num_context_tokens, ())
    token_s = cost.predict(shape)

    def gain_s(length: int) -> float:
        accepted = sum(offer.acceptance**num for num in range(1, length + 1))
        longer_s = cost.predict(shape.with_more(offer.num_context_tokens, length)) if length else token_s
        return accepted * token_s - (longer_s - token_s)

    decodes = DecodeLoad(1, offer.num_context_tokens, math.inf, math.inf)
    [*chosen] = draft_lengths([offer], shape, decodes, cost, 64).values()
    best_s = max(gain_s(length) for length in range(offer.num_tokens + 1))
    assert gain_s(chosen[0] if chosen else 0) >= best_s - 1e-9


def test_a_draft_that_costs_nothing_is_taken_whole() -> None:
    cost = CostModel((1.0, 0.0, 0.01, 0.0, 0.0, 0.0), 64)
    offers = [Offer(0, 100, 9, 0.3)]
    assert draft_lengths(offers, StepShape.of(1, 100, ()), DecodeLoad(1, 100), cost, 64) == {0: 9}


def test_a_rate_follows_drafts_and_recovers_from_wrong_ones() -> None:
    acceptance = Acceptance()
    first = acceptance.rate
    for _ in range(50):
        acceptance.observe(4, 0)
    assert acceptance.rate < first / 5
    for _ in range(400):
        acceptance.recover()
    assert acceptance.rate > 0.9 * first
    for _ in range(50):
        acceptance.observe(4, 4)
    assert 0.95 < acceptance.rate < 1
