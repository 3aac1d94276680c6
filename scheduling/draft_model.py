"""How many tokens a draft model drafts for each running choice, and which choices it catches up with.

Drafting goes in rounds: a round is one step of the draft model, which adds a token to the draft of each of
its rows. A round takes time whatever it contains, so rows that share rounds share their costs. Rounds are
added as long as the tokens that are expected to be accepted save more time than drafting and verifying take
(the cost of a draft as in Leviathan et al., "Fast Inference from Transformers via Speculative Decoding",
ICML 2023, with measured costs instead of a ratio).

A row can have a draft once the draft model has computed nearly all of its tokens. Catching up with a prompt
takes longer than a step saves. It is an investment: it is made where the tokens that are left repay it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from scheduling.cost_model import WILD, CostModel, StepShape
from scheduling.speculation import LIKELY, MOST_DRAFTS
from scheduling.step import DecodeLoad
from scheduling.value import value

NEARLY = 1 + MOST_DRAFTS
"""A row that lacks at most so many tokens computes them in the first round of its draft."""
HORIZON = 256
"""Savings of at most so many tokens count, since few outputs are known to be longer."""
LEAST_CHUNK = 16
"""Fewer tokens at once are not worth a step of the draft model."""
LEVEL_MEMORY = 0.95
"""The weight of the level of costs after an observation, once there are many."""
BELIEF = 0.998
"""The belief in costs after a step that they have prevented. Half the costs are enough after some 350 such
steps."""
LEVEL_STEP = 0.02
"""A smaller change of the level of costs is not worth a new model of them."""


@value
class ModelOffer:
    """A draft that a draft model could make for one row."""

    row: int
    num_context_tokens: int
    """Tokens before the draft."""
    num_computed_tokens: int
    """The leading ones that the draft model has computed."""
    num_tokens: int
    """The longest draft that the row has a use for."""
    num_left: int
    """The most output tokens that may still follow."""
    acceptance: float
    """The probability that the next drafted token is accepted where all before it were."""

    @property
    def num_behind(self) -> int:
        return self.num_context_tokens - self.num_computed_tokens


@value
class DraftPlan:
    """The work of a draft model before a step."""

    lengths: dict[int, int]
    """The number of tokens to draft, by row; only rows with a token or more."""
    catch_up: tuple[int, int] | None = None
    """A row, and how many of its next tokens to compute, without a draft."""


class FollowedCost:
    """Step costs that were measured once, at the level of the latest steps.

    Costs that are too high to take a step would never be corrected, for example if other work disturbed the
    measurement. So they are believed less with each step that was not taken, until one is.
    """

    def __init__(self, measured: CostModel) -> None:
        self.model = self._measured = measured
        self._level = self._belief = self._published = 1.0
        self._num_observed = 0

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Take in how long a step took; wild ones are ignored."""
        predicted = self._measured.predict(shape)
        if not predicted / WILD < seconds < predicted * WILD:
            return
        self._num_observed += 1
        weight = max(1 - LEVEL_MEMORY, 1 / (1 + self._num_observed))
        self._level += weight * (seconds / predicted - self._level)
        self._belief = 1.0
        self._publish()

    def doubt(self) -> None:
        """Take in that no step was taken, as it seemed not worth its costs."""
        self._belief *= BELIEF
        self._publish()

    def _publish(self) -> None:
        level = self._level * self._belief
        if abs(level - self._published) > LEVEL_STEP * self._published:
            self._published = level
            self.model = self._measured.scaled(level)


def plan_drafts(
    offers: Sequence[ModelOffer],
    shape: StepShape,
    decodes: DecodeLoad,
    costs: tuple[CostModel, CostModel],
    *,
    most: int,
    token_budget: int,
    num_drafted_rows: int = 0,
) -> DraftPlan:
    """Return what a draft model does before a step of some `shape`, with at most `most` drafted tokens.

    `costs` are those of the model's steps and of the draft model's. At most `token_budget` tokens are
    computed to catch up. Drafting and the step together end by the time the earliest token is due, unless
    all rows have a draft, `num_drafted_rows` of them from elsewhere; then only the limit of a gap counts.
    """
    ready = [offer for offer in offers if offer.num_behind <= NEARLY]
    behind = [offer for offer in offers if offer.num_behind > NEARLY]
    if behind:
        all_ready = _Rounds([_caught_up(offer) for offer in offers], shape, decodes, costs, most)
        behind = [offer for offer in behind if all_ready.repays(offer)]
    rounds = _Rounds(ready, shape, decodes, costs, most)
    has_all = not behind and num_drafted_rows + len(rounds.lengths) == decodes.num_seqs
    limit_s = decodes.gap_limit_s if has_all else min(decodes.slack_s, decodes.gap_limit_s)
    lengths = rounds.within(limit_s)
    left_s = limit_s - rounds.seconds_q95(lengths)
    return DraftPlan(lengths, _chunk(behind, left_s, costs[1], token_budget))


def _caught_up(offer: ModelOffer) -> ModelOffer:
    return replace(offer, num_computed_tokens=max(offer.num_computed_tokens, offer.num_context_tokens - 1))


def _chunk(
    behind: Iterable[ModelOffer], left_s: float, draft_cost: CostModel, token_budget: int
) -> tuple[int, int] | None:
    """Return the next chunk of the row that will be ready first, if one fits into `left_s`."""
    offer = min(behind, key=lambda offer: offer.num_behind, default=None)
    if offer is None:
        return None
    num = min(offer.num_behind, token_budget)
    least = min(num, LEAST_CHUNK)
    while num >= least:
        if draft_cost.predict_q95(_prefill(offer, num)) <= left_s:
            return offer.row, num
        num //= 2
    return None


def _prefill(offer: ModelOffer, num_tokens: int) -> StepShape:
    return StepShape.of(0, 0, [(offer.num_computed_tokens, num_tokens)])


class _Rounds:
    """The rounds of drafting that are expected to save the most time, whatever is promised."""

    def __init__(
        self,
        offers: Iterable[ModelOffer],
        shape: StepShape,
        decodes: DecodeLoad,
        costs: tuple[CostModel, CostModel],
        most: int,
    ) -> None:
        self._shape = shape
        self._cost, self._draft_cost = costs
        self._is_trusted = all(cost.is_trusted for cost in costs)
        # What a token saves is its share of a step of decodes alone, whatever prompts this step computes.
        decode_step = StepShape.of(decodes.num_seqs, decodes.context_tokens, ())
        self._token_s = self._cost.predict(decode_step) / max(1, decodes.num_seqs)
        self._rounds: list[list[ModelOffer]] = []
        self._gain_s = 0.0
        self._add_rounds(sorted(offers, key=lambda offer: -offer.acceptance), most)
        self.lengths = self._lengths(self._rounds)

    def repays(self, offer: ModelOffer) -> bool:
        """Return whether a row gets drafts, and its share of the gain repays its catching up.

        The draft model catches up by computing the tokens of the row that it has not seen.
        """
        num = self.lengths.get(offer.row, 0)
        if not num or not self._is_trusted:
            return num > 0
        expected = sum(offer.acceptance**place for place in range(1, num + 1))
        num_steps = min(offer.num_left, HORIZON) / (1 + expected)
        catch_up_s = self._draft_cost.predict(_prefill(offer, offer.num_behind))
        return num_steps * self._gain_s / len(self.lengths) > catch_up_s

    def within(self, limit_s: float) -> dict[int, int]:
        """Return the lengths of the drafts if rounds are left out until all is over within `limit_s`."""
        for num_rounds in range(len(self._rounds), 0, -1):
            lengths = self._lengths(self._rounds[:num_rounds])
            if self.seconds_q95(lengths) <= limit_s:
                return lengths
        return {}

    def seconds_q95(self, lengths: dict[int, int]) -> float:
        """Return what 19 of 20 steps with such drafts stay within, drafting included."""
        shape, draft_s = self._shape, 0.0
        for place, rows in enumerate(self._rounds[: max(lengths.values(), default=0)], 1):
            draft_s += self._draft_cost.predict_q95(_round(rows, place))
            shape = _verified(shape, rows, place)
        return draft_s + self._cost.predict_q95(shape)

    def _add_rounds(self, offers: Sequence[ModelOffer], most: int) -> None:
        """Add rounds up to the one with which the most is gained."""
        rates = (offer.acceptance for offer in offers)
        most_saved_s = self._token_s * sum(rate / (1 - rate) for rate in rates)  # by endless drafts
        if self._is_trusted and most_saved_s <= self._draft_cost.predict(_NO_STEP):
            return
        rounds: list[list[ModelOffer]] = []
        shape, gain_s = self._shape, 0.0
        for place in range(1, MOST_DRAFTS + 1):
            offers = [offer for offer in offers if self._pays(offer, place, shape)][:most]
            if not offers:
                return
            most -= len(offers)
            rounds.append(offers)
            longer = _verified(shape, offers, place)
            saved_s = self._token_s * sum(offer.acceptance**place for offer in offers)
            drafting_s = self._draft_cost.predict(_round(offers, place))
            gain_s += saved_s - drafting_s - self._cost.predict(longer) + self._cost.predict(shape)
            shape = longer
            if gain_s > self._gain_s or not self._is_trusted:
                self._rounds, self._gain_s = list(rounds), gain_s

    def _pays(self, offer: ModelOffer, place: int, shape: StepShape) -> bool:
        """Return whether a row's token in a round saves more than it adds to the round and to the step."""
        if offer.num_tokens < place:
            return False
        reached = offer.acceptance**place
        if not self._is_trusted:
            return reached > LIKELY
        added_s = self._cost.predict(_verified(shape, [offer], place)) - self._cost.predict(shape)
        added_s += self._draft_cost.predict(_round([offer], place)) - self._draft_cost.predict(_NO_STEP)
        return reached * self._token_s > added_s

    def _lengths(self, rounds: Sequence[Sequence[ModelOffer]]) -> dict[int, int]:
        return {offer.row: place for place, rows in enumerate(rounds, 1) for offer in rows}


_NO_STEP = StepShape.of(0, 0, ())


def _round(offers: Sequence[ModelOffer], place: int) -> StepShape:
    """Return the draft model's step in a round; the first one has all tokens that it has not computed."""
    if place > 1:
        context = sum(offer.num_context_tokens + place - 1 for offer in offers)
        return StepShape.of(len(offers), context, ())
    alone = [offer.num_context_tokens for offer in offers if offer.num_behind <= 1]
    chunks = [(offer.num_computed_tokens, offer.num_behind) for offer in offers if offer.num_behind > 1]
    return StepShape.of(len(alone), sum(alone), chunks)


def _verified(shape: StepShape, offers: Iterable[ModelOffer], place: int) -> StepShape:
    """Return a step that verifies one more token of each row, the one that a round has drafted."""
    for offer in offers:
        shape = shape.with_more(offer.num_context_tokens + place - 1, 1)
    return shape
