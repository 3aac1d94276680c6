"""Estimate how much a fleet can carry at most, by arithmetic, as a start for simulations.

A worker in steady state at r requests per second decodes B = r · output · t sequences in steps of t seconds.
A share r · p of its time computes prompts (p seconds each, beyond the fixed cost of a step):

    t = (a0 + B · (c1 + c4 · context)) / (1 - r · p)

The capacity is the largest r for which t keeps the required time per token, and B fits the seats and the
memory.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scheduling.cost.profiles import Profile
from scheduling.cost_model import StepShape
from scheduling.placement import Placement
from sim.spec import FleetShape
from sim.workloads.shapes import RequestShape
from sim.workloads.slo import REFERENCE_CONTEXT, REFERENCE_SEQS, References


@dataclass(frozen=True, slots=True)
class Demand:
    """The costs of a mean request for a worker."""

    prefill_s: float
    """Seconds for its prompt, in steps at the knee."""
    context_tokens: float
    """The mean context while it decodes."""
    output_tokens: float
    peak_blocks: float


def references(profile: Profile, lengths: Sequence[RequestShape], scale: float) -> References:
    """Return the profile's times without load: D, and the median prompt alone."""
    context = max(1, round(REFERENCE_CONTEXT * scale))
    step = StepShape.of(REFERENCE_SEQS, REFERENCE_SEQS * context, ())
    alone = statistics.median(alone_s(profile, length.prompt_tokens) for length in lengths)
    return References(profile.cost.predict(step), alone)


def alone_s(profile: Profile, prompt_tokens: int) -> float:
    """Return the seconds of a prompt alone, chunk by chunk at the profile's budget."""
    total_s, done = 0.0, 0
    while done < prompt_tokens:
        size = min(profile.token_budget, prompt_tokens - done)
        total_s += profile.cost.predict(StepShape.of(0, 0, ((done, size),)))
        done += size
    return total_s


def demand(profile: Profile, lengths: Sequence[RequestShape]) -> Demand:
    """Return the costs of a workload's mean request."""
    _, _, c3, _, c5, _ = profile.cost.coefficients
    prefill = [c3 * length.prompt_tokens + c5 * length.prompt_tokens**2 / 2 for length in lengths]
    # Longer outputs decode for longer, so contexts are weighted by them.
    tokens = sum(length.output_tokens for length in lengths)
    contexts = sum(
        length.output_tokens * (length.prompt_tokens + length.output_tokens / 2) for length in lengths
    )
    peaks = [(length.prompt_tokens + length.output_tokens) / profile.block_size for length in lengths]
    return Demand(
        statistics.fmean(prefill), contexts / tokens, tokens / len(lengths), statistics.fmean(peaks)
    )


def capacity_per_s(
    profile: Profile,
    fleet: FleetShape,
    placement: Placement,
    lengths: Sequence[RequestShape],
    tpot_s: float | None,
) -> float:
    """Return the requests per second that the fleet carries at most; an estimate, not measured."""
    need = demand(profile, lengths)
    limit_s = tpot_s if tpot_s is not None else float("inf")
    if placement is Placement.AGGREGATED or fleet.prefill == 0:
        return fleet.size * _worker_per_s(profile, need, need.prefill_s, limit_s)
    decode = fleet.decode * _worker_per_s(profile, need, 0.0, limit_s)
    a0 = profile.cost.coefficients[0]
    mean_prompt = statistics.fmean(length.prompt_tokens for length in lengths)
    prefill = fleet.prefill / (need.prefill_s + a0 * max(1.0, mean_prompt / profile.token_budget))
    if placement is Placement.DISAGGREGATED:
        return min(prefill, decode)
    # Decode workers take the prompts that prefill workers cannot.
    mixed = fleet.size * _worker_per_s(profile, need, need.prefill_s, limit_s)
    return min(max(min(prefill, decode), mixed), decode)


def _worker_per_s(profile: Profile, need: Demand, prefill_s: float, limit_s: float) -> float:
    low, high = 0.0, 1.0 / prefill_s if prefill_s > 0 else 1e6
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _holds(profile, need, prefill_s, limit_s, middle) else (low, middle)
    return low


def _holds(profile: Profile, need: Demand, prefill_s: float, limit_s: float, rate: float) -> bool:
    a0, c1, _, c4, _, _ = profile.cost.coefficients
    left = 1.0 - rate * prefill_s
    per_sequence = c1 + c4 * need.context_tokens
    # t = (a0 + r·out·t·per) / left, solved for t.
    divisor = left - rate * need.output_tokens * per_sequence
    if divisor <= 0:
        return False
    step_s = a0 / divisor
    running = rate * need.output_tokens * step_s
    blocks = running * need.peak_blocks
    return step_s <= limit_s and running <= profile.max_num_seqs and blocks <= profile.num_blocks
