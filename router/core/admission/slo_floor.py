"""SLOs below the time that a request takes alone on an idle worker: they are wrong, not refused.

A refusal says "not now", and the client comes back; with an SLO that no worker could ever meet it would come
back in vain. The floor therefore leaves out all load, and every doubt counts for the caller: the quickest
worker, the quickest costs that this worker ever reported, the quickest of ten such steps, a prompt that
shares these steps with nobody and is cached as far as any worker has it, and no other time. While the workers
stay, the floor only falls: neither a slow spell nor costs that are not trusted for a while change it. There
is no floor while a worker has measured nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from router.core.capacity.fleet import Fleet, Worker
from router.errors import Reason, ValidationError
from scheduling.admission.prediction import PrefillView, RequestCost, own_prefill_s, prefill_speed
from scheduling.cost.cost_model import CostModel, StepShape
from scheduling.cost.quickest import early_s
from scheduling.request import MAX_SLO_MS, Slo
from scheduling.value import value


@value
class SloFloor:
    """The least time that a request takes, in seconds; 0 where it is not known."""

    ttft_s: float = 0.0
    step_s: float = 0.0
    """A decode step of this request alone."""


@value
class BelowFloor:
    """A field of an SLO, the value it has, and the least value that could be met."""

    field: str
    value_ms: int
    least_ms: int


Known = Sequence[CostModel]
"""The quickest costs a worker has reported (`scheduling.cost.quickest`); empty before it reported any."""


def slo_floor(
    cost: RequestCost, computing: Sequence[tuple[Known, int]], decoding: Sequence[Known]
) -> SloFloor:
    """Return the floor by the costs of the workers that compute prompts, each with its token budget, and of
    the workers that decode.
    """
    ttft_s = step_s = 0.0
    if computing and all(known for known, _ in computing):
        ttft_s = min(
            model.ratio_q10 * own_prefill_s(cost, prefill_speed(PrefillView(model, budget)))
            for known, budget in computing
            for model in known
        )
    if decoding and all(decoding):
        alone = StepShape.of(1, cost.prompt_tokens, ())
        step_s = min(early_s(model, alone) for known in decoding for model in known)
    return SloFloor(ttft_s, step_s)


def floor_of(cost: RequestCost, computing: Sequence[Worker], decoding: Sequence[Worker]) -> SloFloor:
    """Return the floor of these workers."""
    budgets = [(worker.quickest, worker.facts.token_budget) for worker in computing]
    return slo_floor(cost, budgets, [worker.quickest for worker in decoding])


def below_floor(slo: Slo, floor: SloFloor) -> BelowFloor | None:
    """Return the first field that asks for less than the floor."""
    for field, asked_ms, least_s in (
        ("slo.ttft_ms", slo.ttft_ms, floor.ttft_s),
        ("slo.tpot_ms", slo.tpot_ms, floor.step_s),
        ("slo.itl_ms", slo.itl_ms, floor.step_s),
    ):
        if asked_ms is not None and asked_ms < least_s * 1000:
            return BelowFloor(field, asked_ms, math.ceil(least_s * 1000))
    return None


def check_slo(cost: RequestCost, slo: Slo, fleet: Fleet) -> None:
    """Raise ValidationError for an SLO below the floor of every worker of the fleet."""
    computing, decoding = fleet.computing, fleet.decoding
    # If one worker can meet the SLO, so can the fleet: the first worker mostly settles it.
    found = below_floor(slo, floor_of(cost, computing[:1], decoding[:1]))
    found = found and below_floor(slo, floor_of(cost, computing, decoding))
    if found is not None:
        accepted = f"{found.least_ms} to {MAX_SLO_MS}, or unset: less no worker of this fleet takes when idle"
        raise ValidationError(
            found.field, found.value_ms, accepted, Reason.SLO_IMPOSSIBLE, limit=found.least_ms
        )
