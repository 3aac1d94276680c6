"""How many drafted tokens each running choice has verified in a step.

Speculative decoding: a draft of the next tokens is computed together with the newest one, and is accepted as
far as the model draws the same tokens (Leviathan et al., "Fast Inference from Transformers via Speculative
Decoding", ICML 2023). A draft costs the time that the step lasts longer, and saves a step for each token that
is accepted. So each row has as many tokens verified as are expected to save more time than they take, while
the step stays within what the promises of all rows allow.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable

from scheduling.cost_model import CostModel, StepShape
from scheduling.step import DecodeLoad
from scheduling.value import value

MOST_DRAFTS = 16
"""The most tokens drafted for one row in one step."""
LIKELY = 0.5
"""While step costs are not trusted, tokens are verified that are accepted more often than this."""
MEMORY = 0.9
"""The weight of an observation after the next one."""
RECOVERY = 0.99
"""The weight of observations after a step in which a row had a draft that was not verified. A row whose
drafts were never accepted has another try after some 200 such steps."""
PRIOR_RATE, PRIOR_TRIED = 0.7, 2.0
"""The rate before anything was observed, which counts as so many observations."""


class Drafter(enum.StrEnum):
    """The sources of drafts."""

    LOOKUP = "lookup"
    MODEL = "model"


class Acceptance:
    """How likely it is that the next drafted token of one choice is accepted, by the latest ones.

    Before it has any, the rate is that of `others`, if they are given.
    """

    __slots__ = ("_accepted", "_others", "_tried")

    def __init__(self, others: Acceptance | None = None) -> None:
        self._accepted = self._tried = 0.0
        self._others = others

    @property
    def rate(self) -> float:
        """Above 0 and below 1."""
        prior = PRIOR_RATE if self._others is None else self._others.rate
        return (self._accepted + prior * PRIOR_TRIED) / (self._tried + PRIOR_TRIED)

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Take in how many tokens of a draft were accepted. Those behind the first wrong one say nothing."""
        self._accepted = MEMORY * self._accepted + num_accepted
        self._tried = MEMORY * self._tried + min(num_drafted, num_accepted + 1)

    def recover(self) -> None:
        """Trust older observations less, since a draft was not verified because of them."""
        self._accepted *= RECOVERY
        self._tried *= RECOVERY


@value
class Offer:
    """A draft that one row could have verified."""

    row: int
    num_context_tokens: int
    """Tokens before the draft."""
    num_tokens: int
    acceptance: float
    """The probability that its next token is accepted where all before it were."""


def draft_lengths(
    offers: Iterable[Offer], shape: StepShape, decodes: DecodeLoad, cost: CostModel, most: int
) -> dict[int, int]:
    """Return how many tokens of each row's draft a step of some `shape` verifies, at most `most` in total.

    Only rows with a token or more are in the result. Where not all rows have a draft, the step ends by the
    time the earliest token is due; where all have one, all gain, and only the limit of a gap counts.
    """
    best_first = sorted(offers, key=lambda offer: -offer.acceptance)
    gains_all = len(best_first) == decodes.num_seqs
    limit_s = decodes.gap_limit_s if gains_all else min(decodes.slack_s, decodes.gap_limit_s)
    # What a token saves is its share of a step of decodes alone, whatever prompts this step computes.
    decode_step = StepShape.of(decodes.num_seqs, decodes.context_tokens, ())
    token_s = cost.predict(decode_step) / max(1, decodes.num_seqs)
    chosen: dict[int, int] = {}
    for offer in best_first:
        longest = min(offer.num_tokens, most, MOST_DRAFTS)
        num = _best_length(offer, longest, shape, cost, token_s)
        while num and cost.predict_q95(shape.with_more(offer.num_context_tokens, num)) > limit_s:
            num -= 1
        if num:
            chosen[offer.row] = num
            most -= num
            shape = shape.with_more(offer.num_context_tokens, num)
    return chosen


def _best_length(offer: Offer, longest: int, shape: StepShape, cost: CostModel, token_s: float) -> int:
    """Return the length whose expected saving is the largest above its cost; `token_s` is a token's worth.

    Each token saves less than the one before it, and after the first one costs no less. So a draft pays
    nowhere if all its tokens save less than the first one costs, and the search ends where the gain falls.
    """
    rate = offer.acceptance
    if not cost.is_trusted:
        return next((num for num in range(longest, 0, -1) if rate**num > LIKELY), 0)
    before_s, accepted, last_s, best, best_s = cost.predict(shape), 0.0, -math.inf, 0, 0.0
    for num in range(1, longest + 1):
        added_s = cost.predict(shape.with_more(offer.num_context_tokens, num)) - before_s
        if num == 1 and rate / (1 - rate) * token_s <= added_s:
            return 0
        accepted += rate**num
        gain_s = accepted * token_s - added_s
        if gain_s < last_s:
            break
        if gain_s > best_s:
            best, best_s = num, gain_s
        last_s = gain_s
    return best
