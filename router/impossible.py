"""SLOs that no fleet of these workers could meet, however idle: they are wrong, not refused.

A refusal says "not now" and a client comes back; what could never be met it would come back for in vain. So
load is left out here altogether, and every doubt counts for the caller: the quickest worker, the quickest of
its steps in ten, a prompt that shares them with nobody, whatever of it may be cached, and no time besides.
Nothing is impossible while one worker's costs are not trusted: it may be quicker than it is said to be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scheduling.cost_model import CostModel, StepShape
from scheduling.prediction import Ask, PrefillView, own_prefill_s
from scheduling.request import Slo
from scheduling.value import value


@value
class Bare:
    """What a request takes at the very least, in seconds; 0 where that is not known."""

    ttft_s: float = 0.0
    step_s: float = 0.0
    """A decode step of this request alone."""


@value
class Impossible:
    """A field of the SLO, what was asked for, and the least that could be met."""

    field: str
    value_ms: int
    least_ms: int


def bare(ask: Ask, computing: Sequence[tuple[CostModel, int]], decoding: Sequence[CostModel]) -> Bare:
    """Of the (costs, token budget) of those that compute prompts, and the costs of those that decode."""
    ttft_s = step_s = 0.0
    if computing and all(_is_known(cost) for cost, _ in computing):
        ttft_s = min(cost.ratio_q10 * own_prefill_s(ask, PrefillView(cost, room)) for cost, room in computing)
    if decoding and all(_is_known(cost) for cost in decoding):
        alone = StepShape.of(1, ask.prompt_tokens, ())
        step_s = min(cost.ratio_q10 * cost.predict(alone) for cost in decoding)
    return Bare(ttft_s, step_s)


def impossible(slo: Slo, least: Bare) -> Impossible | None:
    """The first field that asks for less than the least."""
    for field, asked_ms, least_s in (
        ("slo.ttft_ms", slo.ttft_ms, least.ttft_s),
        ("slo.tpot_ms", slo.tpot_ms, least.step_s),
        ("slo.itl_ms", slo.itl_ms, least.step_s),
    ):
        if asked_ms is not None and asked_ms < least_s * 1000:
            return Impossible(field, asked_ms, math.ceil(least_s * 1000))
    return None


def _is_known(cost: CostModel) -> bool:
    return cost.is_trusted and any(cost.coefficients)
