"""SLOs that no fleet of these workers could meet, however idle: they are wrong, not refused.

A refusal says "not now", and the client comes back; for what could never be met it would come back in vain.
So load is left out here altogether, and every doubt counts for the caller: the quickest worker, the quickest
costs that it has ever told, the quickest of ten such steps, a prompt that shares them with nobody, whatever
part of it may be cached, and no time besides. While the workers stay, the limit only falls: neither a slow
spell nor costs that are not trusted for a while change the answer. Nothing is impossible while a worker has
measured nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scheduling.admission.prediction import PrefillView, RequestCost, own_prefill_s
from scheduling.cost.cost_model import CostModel, StepShape
from scheduling.cost.quickest import early_s
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


Known = Sequence[CostModel]
"""The quickest costs a worker has reported (`scheduling.cost.quickest`); empty before it reported any."""


def bare(request: RequestCost, computing: Sequence[tuple[Known, int]], decoding: Sequence[Known]) -> Bare:
    """Return the least by what workers told: those that compute prompts, with their token budgets, and those
    that decode.
    """
    ttft_s = step_s = 0.0
    if computing and all(known for known, _ in computing):
        ttft_s = min(
            cost.ratio_q10 * own_prefill_s(request, PrefillView(cost, room))
            for known, room in computing
            for cost in known
        )
    if decoding and all(decoding):
        alone = StepShape.of(1, request.prompt_tokens, ())
        step_s = min(early_s(cost, alone) for known in decoding for cost in known)
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
