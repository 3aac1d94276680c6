"""Predict a request's time to first token, its time per token, and its longest gap.

    TTFT = max(rest of the step + prefill work ahead / prefill rate, wait for a decode slot) + own prompt
    TPOT = cost of the decode steps it will join
    ITL  = the 95 % quantile of the longest step that its worker must run

TTFT and TPOT are then scaled by quantiles of observed / predicted, so the factors that the formulas leave out
(hand-over, network, neighbours on the same cores) are learnt instead of assumed. All times are in seconds.

These are formulas over numbers alone; `router/core/judge.py` applies them to the router's fleet. A
worker is examined when it has changed (`speeds`). The fleet's capacity is a sum over the workers
(`capacity_of`). `predict` is called often; its cost does not depend on the number of workers. `soonest`
predicts the first token on the worker that would have it first. Where requests are bound late, and no more of
them are ahead than workers compute prompts, `judge` takes its wait and own prompt instead of the formula's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from scheduling.admission.prefixes import HeldPrefix
from scheduling.packing import GRAIN_TOKENS
from scheduling.speeds import (
    DecodeSpeed,
    DecodeView,
    PrefillSpeed,
    chunk_tokens,
    decode_step_s,
    mixed_step_s,
    num_micro_batches,
    round_s,
    share,
)
from scheduling.step import NO_LIMIT_S
from scheduling.value import value


@value
class Lane:
    """A worker that computes prompts, as one more prompt finds it."""

    key: str
    wait_s: float
    """Until the work bound to it is computed."""
    speed: PrefillSpeed
    load_s: float = 0.0
    """The time to load the prompt's LoRA adapter, if it is not there, before the prompt is computed."""


@value
class Capacity:
    """A fleet's capacity in a few numbers."""

    prefill_rate: float
    """Prompt tokens per second, all workers together."""
    num_computing: int
    """Prompts that are computed at once, one in each step in flight."""
    quickest: PrefillSpeed
    """The worker that computes a lone prompt fastest."""
    num_decoding: int
    free_seqs: int
    """Free seats. Below 0: as many sequences must end before a seat is free, since promises allow fewer than
    are running."""
    free_blocks: int
    blocks_per_end: float
    ends_per_s: float
    roomiest: DecodeView
    """The worker whose decode step is the shortest once a request has joined."""


@value
class RequestCost:
    """The work and room that one request needs."""

    prompt_tokens: int
    cached_tokens: int
    blocks: int
    num_seqs: int
    waited_s: float = 0.0
    """Seconds since the router received it: tokenising and waiting for it are a known part of the TTFT."""

    read_s: float = 0.0
    """The time to read cached tokens from a disk, before the others are computed."""

    def with_cached(self, cached_tokens: int, read_s: float = 0.0) -> RequestCost:
        """Return the same request with this many cached prompt tokens."""
        if cached_tokens == self.cached_tokens and read_s == self.read_s:
            return self
        return replace(self, cached_tokens=cached_tokens, read_s=read_s)


@value
class QueueAhead:
    """The work ahead of a request, bound to workers or in the queue."""

    tokens: int
    requests: int


@value
class Prediction:
    """Medians by the formulas, before any learnt ratio; for the longest gap the 95 % quantile."""

    ttft_s: float
    tpot_s: float
    wait_s: float
    """The part of ttft_s before the request's own work."""
    batch_size: int
    """Sequences in the decode steps it would join."""
    itl_s: float = 0.0
    least_pace_s: float = 0.0
    """The time per token if each step were the longest that its worker must run."""
    waits_for_slot: bool = False
    """Decode workers are full, or will be by its turn, so it waits for sequences to end."""
    fixed_s: float = 0.0
    """The part of ttft_s that was learnt from requests on an idle fleet."""
    waited_s: float = 0.0
    """Seconds already over at the prediction; not part of ttft_s."""


def capacity_of(prefill: Sequence[PrefillSpeed], decode: Sequence[DecodeSpeed]) -> Capacity:
    """Sum up a fleet; each of the two must contain a worker."""
    quickest = min(prefill, key=attrgetter("token_s"))
    return Capacity(
        prefill_rate=sum(speed.rate for speed in prefill),
        num_computing=sum(num_micro_batches(speed.view.num_stages) for speed in prefill),
        quickest=quickest,
        num_decoding=len(decode),
        free_seqs=free_seats([speed.view.seq_capacity - speed.view.num_seqs for speed in decode]),
        free_blocks=sum(speed.view.free_blocks for speed in decode),
        blocks_per_end=max(speed.view.mean_blocks for speed in decode),
        ends_per_s=sum(speed.ends_per_s for speed in decode),
        roomiest=min(decode, key=attrgetter("next_step_s")).view,
    )


def free_seats(by_worker: Sequence[int]) -> int:
    """Return the free seats of all workers; an overcrowded worker does not reduce the seats of others.

    If all are overcrowded, the least crowded one is free first. It has one in n of the sequences that end on
    n workers, hence the factor.
    """
    free = sum(seats for seats in by_worker if seats > 0)
    return free or max(by_worker) * len(by_worker)


def predict(
    request: RequestCost, ahead: QueueAhead, capacity: Capacity, prefill_load: float = 0.0
) -> Prediction:
    """Predict a request. `prefill_load` is the share of time in which prompts are computed."""
    slot_s = slot_wait_s(request, ahead, capacity)
    wait_s = max(prefill_wait_s(ahead, capacity), slot_s)
    view = capacity.roomiest
    share = math.ceil(ahead.requests / capacity.num_decoding)
    batch_size = max(request.num_seqs, min(view.seq_capacity, view.num_seqs + share + request.num_seqs))
    tpot_s = longest_s = decode_step_s(view, batch_size)
    late = usual = view.cost.ratio_q95
    if view.prefill is not None:
        full_s = round_s(mixed_step_s(view.prefill, chunk_tokens(view.prefill)), view.num_stages)
        tpot_s += prefill_load * max(0.0, full_s - tpot_s)
        longest_s = _least_mixed_s(view, batch_size, longest_s, full_s)
        if (band := view.cost.chunk_band) is not None:
            # These steps vary with the host, from one to the next; their mean over an output does not.
            late, usual = band.q95, band.q50
    own_s = own_prefill_s(request, capacity.quickest)
    return Prediction(
        ttft_s=wait_s + own_s,
        tpot_s=tpot_s,
        wait_s=wait_s,
        batch_size=batch_size,
        itl_s=longest_s * late,
        least_pace_s=longest_s * usual,
        waits_for_slot=slot_s > 0,
        waited_s=request.waited_s,
    )


def _least_mixed_s(view: DecodeView, batch_size: int, step_s: float, full_s: float) -> float:
    """Return the longest step that the worker cannot avoid: under a limit, prompts are cut to one grain."""
    assert view.prefill is not None, "called only for workers that compute prompts"
    if view.prefill.limit_s == NO_LIMIT_S:
        return max(step_s, full_s)
    cost, grain, decodes = view.cost, GRAIN_TOKENS, share(batch_size, view.num_stages)
    _, c1, c3, _, c5, _ = cost.coefficients
    over = max(0.0, decodes + grain - cost.knee_tokens) - max(0.0, decodes - cost.knee_tokens)
    parts_s = (c1, c3 * over, c5 * grain * grain / 2)
    return max(
        cost.chunk_floor_s, sum((round_s(part_s, view.num_stages) for part_s in parts_s), start=step_s)
    )


def prefill_wait_s(ahead: QueueAhead, capacity: Capacity) -> float:
    """Return the time until the prompts ahead are computed, including the rest of the running step."""
    quickest = capacity.quickest
    busy = ahead.tokens > 0 or quickest.view.num_decodes > 0
    return (quickest.rest_s if busy else 0.0) + ahead.tokens / capacity.prefill_rate


def level_s(lanes: Sequence[Lane], ahead_tokens: int) -> float:
    """Return when the queue's `ahead_tokens` are computed, if each goes to the lane that is free first.

    They fill the lanes like water, up to one level: Σ rate · max(0, level - wait) = tokens ahead.
    """
    if ahead_tokens <= 0:
        return 0.0
    rate, bound = 0.0, 0.0
    for lane in sorted(lanes, key=attrgetter("wait_s")):
        if rate > 0 and ahead_tokens + bound <= lane.wait_s * rate:
            break
        rate += lane.speed.rate
        bound += lane.speed.rate * lane.wait_s
    return (ahead_tokens + bound) / rate


def soonest(
    request: RequestCost,
    ahead_tokens: int,
    lanes: Sequence[Lane],
    held: Mapping[str, HeldPrefix],
    quickest: PrefillSpeed,
) -> tuple[float, float]:
    """Return the wait and the own time of the lane with the earliest first token. There must be a lane.

    One sum over the fleet, all bound work by all rates, would give a long prompt the waits of busy workers,
    while another worker idles. `held` has what some lanes hold of the prompt, where that is not what the
    request says. No lane computes a lone prompt faster than `quickest`.
    """
    most_cached = request.with_cached(
        max((request.cached_tokens, *(prefix.num_tokens for prefix in held.values())))
    )
    level, least_own_s = level_s(lanes, ahead_tokens), own_prefill_s(most_cached, quickest)
    best_wait_s = best_own_s = NO_LIMIT_S
    for lane in sorted(lanes, key=attrgetter("wait_s")):
        wait_s = max(lane.wait_s, level)
        if wait_s + least_own_s >= best_wait_s + best_own_s:
            break
        own = request
        if (prefix := held.get(lane.key)) is not None:
            own = request.with_cached(prefix.num_tokens, prefix.read_s)
        own_s = lane.load_s + own_prefill_s(own, lane.speed)
        if wait_s + own_s < best_wait_s + best_own_s:
            best_wait_s, best_own_s = wait_s, own_s
    return best_wait_s, best_own_s


def slot_wait_s(request: RequestCost, ahead: QueueAhead, capacity: Capacity) -> float:
    """Return the time until enough running sequences have ended for all requests ahead and this one."""
    seqs_short = ahead.requests + request.num_seqs - capacity.free_seqs
    mean_blocks = capacity.blocks_per_end or float(request.blocks)
    blocks_short = request.blocks + ahead.requests * mean_blocks - capacity.free_blocks
    ends_needed = max(float(seqs_short), blocks_short / mean_blocks if mean_blocks else 0.0)
    if ends_needed <= 0 or capacity.ends_per_s <= 0:
        return 0.0
    return ends_needed / capacity.ends_per_s


def own_prefill_s(request: RequestCost, speed: PrefillSpeed) -> float:
    """Return the time of the request's own prompt: to read what is on a disk, and to compute the rest.

    Computing takes the sum over its chunks, in closed form. They follow one another, on a pipeline too.
    """
    view, chunk = speed.view, speed.chunk
    a0, c1, c3, c4, c5, c6 = view.cost.coefficients
    total, done = request.prompt_tokens, min(request.cached_tokens, request.prompt_tokens - 1)
    steps = -(-(total - done) // chunk)
    last = total - done - (steps - 1) * chunk
    over = view.num_decodes - view.cost.knee_tokens
    own_s = steps * (a0 + c1 * (view.num_decodes + 1) + c4 * view.decode_context)
    own_s += c3 * ((steps - 1) * max(0.0, over + chunk) + max(0.0, over + last))
    own_s += c5 * (total * total - done * done) / 2
    own_s += c6 * (steps * done + chunk * steps * (steps - 1) / 2)
    least_s = steps * max(1e-6, view.cost.chunk_floor_s)
    return request.read_s + round_s(max(least_s, own_s), view.num_stages)
