"""Predict what a request will experience: time to first token, time per token, and longest gap.

    TTFT = max(rest of the step + prefill work ahead / prefill rate, wait for a decode slot) + own prompt
    TPOT = cost of the decode steps it will join
    ITL  = the 95 % quantile of the longest step that its worker must run

TTFT and TPOT are then scaled by quantiles of observed / predicted (`admission/learnt.py`), so the factors
that the formulas leave out (hand-over, network, neighbours on the same cores) are learnt instead of assumed.

These are formulas over numbers alone; all times are in seconds. They build on one another:

    pipeline stages   what a worker's stages change in a formula
    workers           how fast a worker computes prompts and decodes, by its step costs and its load
    fleets            the sum over the workers (`capacity_of`), and each worker as a prompt finds it (`Lane`)
    requests          `predict`, whose cost does not depend on the number of workers, and `soonest`: the
                      first token on the worker that would have it first

A worker's layers may be split over pipeline stages. A step passes the stages in turn, and takes an equal
share of its time in each. A sequence is in one step at a time, so it has its next step only after a whole
pass. The formulas hold for one stage as well, whose steps follow one another.

`router/core/judge.py` applies the formulas to the router's fleet. Where requests are bound late, and no more
of them are ahead than workers compute prompts, it takes the wait and the own prompt of `soonest` instead of
the formula's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from scheduling.cost_model import CostModel
from scheduling.packing import GRAIN_TOKENS
from scheduling.step import NO_LIMIT_S
from scheduling.value import value

ARRIVAL_S = 0.05
FIXED_SHARE = 0.05


# Pipeline stages


def num_micro_batches(num_stages: int) -> int:
    """Return how many steps are in flight at most.

    One more than the stages of a pipeline: where steps are not equally long, one of them waits for its stage
    instead of a stage for it.
    """
    return 1 if num_stages == 1 else num_stages + 1


def round_s(step_s: float, num_stages: int, num_in_flight: int | None = None) -> float:
    """Return the time from one step of a sequence to its next, where all steps take `step_s`.

    The first stage takes in a step after the other, so a sequence waits for a whole pass, or for all steps in
    flight to enter, whichever is longer. None: as many as there may be.
    """
    if num_stages == 1:
        return step_s
    most = num_micro_batches(num_stages)
    num_in_flight = most if num_in_flight is None else min(most, num_in_flight)
    return step_s * max(1.0, num_in_flight / num_stages)


def step_limit_s(pace_s: float, num_stages: int) -> float:
    """Return the longest step in a full pipeline that keeps a pace, the inverse of `round_s`."""
    return pace_s * (num_stages / num_micro_batches(num_stages))


def share(number: int, num_stages: int) -> int:
    """Return a micro-batch's share of running sequences, or of their context, rounded up."""
    return -(-number // num_micro_batches(num_stages))


# Workers


@value
class PrefillView:
    """A worker that computes prompts; `num_decodes` and `decode_context` are of the decodes in its steps."""

    cost: CostModel
    token_budget: int
    num_decodes: int = 0
    decode_context: int = 0
    limit_s: float = NO_LIMIT_S
    """The longest step that its policy builds, because of those decodes."""
    num_stages: int = 1


@value
class PrefillSpeed:
    """One worker's contribution to the fleet's prefill capacity."""

    view: PrefillView
    chunk: int
    """Prompt tokens of a full step."""
    step_s: float
    """Duration of a full step."""
    rate: float
    """Prompt tokens per second."""

    @property
    def token_s(self) -> float:
        """Time of one token of a prompt, of which one chunk is computed at a time."""
        return round_s(self.step_s, self.view.num_stages) / self.chunk

    @property
    def lone_token_s(self) -> float:
        """Time by which a token of a lone prompt takes longer than one of as many prompts as fit in."""
        return self.token_s * (1 - 1 / num_micro_batches(self.view.num_stages))

    @property
    def rest_s(self) -> float:
        """Expected time until the worker can begin another step."""
        return self.step_s / (2 * self.view.num_stages)


@value
class DecodeView:
    """A worker that decodes."""

    cost: CostModel
    num_seqs: int
    context_tokens: int
    seq_capacity: int
    """Most sequences it may run without breaking a promise."""
    free_blocks: int
    mean_remaining_tokens: float
    mean_blocks: float
    """Blocks that one sequence frees when it ends."""
    prefill: PrefillView | None = None
    """The same worker as one that computes prompts; None if it never does."""
    num_stages: int = 1


@value
class DecodeSpeed:
    """One worker's contribution to the fleet's decode capacity."""

    view: DecodeView
    next_step_s: float
    """Time between decode steps once one more sequence has joined."""
    ends_per_s: float


def prefill_speed(view: PrefillView) -> PrefillSpeed:
    """Return how fast a worker computes prompts."""
    chunk = chunk_tokens(view)
    step_s = mixed_step_s(view, chunk)
    return PrefillSpeed(view, chunk, step_s, view.num_stages * chunk / step_s)


def chunk_tokens(view: PrefillView) -> int:
    """Return the prompt tokens of a full step: what budget and time limit leave, at least a grain."""
    room = max(1, view.token_budget - view.num_decodes)
    if view.limit_s == NO_LIMIT_S:
        return room
    a0, c1, c3, c4, c5, _ = view.cost.coefficients
    # A step with a chunk takes its least time in any case, and what fits into that is free.
    left_s = max(view.limit_s / view.cost.of_chunks.q95, view.cost.chunk_floor_s)
    left_s -= a0 + c1 * (view.num_decodes + 1) + c4 * view.decode_context
    free = view.cost.knee_tokens - view.num_decodes
    most = _largest(c5 / 2, c3, left_s + c3 * free)
    if most < free:
        most = min(free, _largest(c5 / 2, 0.0, left_s))
    return max(min(GRAIN_TOKENS, room), int(min(room, most)))


def arrival_s(cost: CostModel) -> float:
    """Return the longest that a step without decodes lasts, after which a new arrival can be computed.

    It is ARRIVAL_S, unless steps that short would spend more than FIXED_SHARE of their time on what any step
    costs, as on a CPU that reads large weights: prompts would be computed much slower then.
    """
    return max(ARRIVAL_S, cost.fixed_s / FIXED_SHARE)


def mixed_step_s(view: PrefillView, chunk: int) -> float:
    """Return the duration of a step with the worker's decodes and one chunk without context before it.

    It is at least a microsecond, since a worker that has measured nothing yet may report steps as free.
    """
    cost = view.cost
    a0, c1, c3, c4, c5, _ = cost.coefficients
    over = max(0.0, view.num_decodes + chunk - cost.knee_tokens)
    step_s = a0 + c1 * (view.num_decodes + 1) + c3 * over + c4 * view.decode_context + c5 * chunk * chunk / 2
    return max(1e-6, cost.chunk_floor_s, step_s)


def decode_speed(view: DecodeView) -> DecodeSpeed:
    """Return how fast a worker decodes."""
    step_s = max(1.0, view.mean_remaining_tokens) * decode_step_s(view, view.num_seqs)
    return DecodeSpeed(view, decode_step_s(view, view.num_seqs + 1), view.num_seqs / step_s)


def decode_step_s(view: DecodeView, batch_size: int) -> float:
    """Return the time between decode steps of this many sequences with the worker's mean context."""
    a0, c1, c3, c4, _, _ = view.cost.coefficients
    mean_context = view.context_tokens / view.num_seqs if view.num_seqs else 0.0
    num_decodes = share(batch_size, view.num_stages)
    over = max(0.0, num_decodes - view.cost.knee_tokens)
    step_s = max(1e-6, a0 + (c1 + c4 * mean_context) * num_decodes + c3 * over)
    return round_s(step_s, view.num_stages, batch_size)


def lone_step_s(cost: CostModel, context_tokens: int) -> float:
    """Return the duration of a decode step of one sequence, by the cost model alone."""
    a0, c1, c3, c4, _, _ = cost.coefficients
    return a0 + c1 + c3 * max(0.0, 1 - cost.knee_tokens) + c4 * context_tokens


def seq_capacity(view: DecodeView, max_seqs: int, tpot_s: float) -> int:
    """Return the most sequences whose decode steps come within `tpot_s`; at least 1, or nothing would run."""
    a0, c1, c3, c4, _, _ = view.cost.coefficients
    slope = c1 + c4 * (view.context_tokens / view.num_seqs if view.num_seqs else 0.0)
    knee, num_batches = view.cost.knee_tokens, num_micro_batches(view.num_stages)
    step_s = step_limit_s(tpot_s, view.num_stages)
    most = _largest(0.0, slope, step_s - a0)
    if most > knee:
        most = max(knee, _largest(0.0, slope + c3, step_s - a0 + c3 * knee))
    limit = max(1, min(max_seqs, int(min(most, max_seqs)) * num_batches))
    # The closed form may round differently from the sum that steps are judged by.
    if limit < max_seqs and decode_step_s(view, limit + 1) <= tpot_s:
        return min(max_seqs, limit + num_batches)
    if limit > 1 and decode_step_s(view, limit) > tpot_s:
        return max(1, limit - num_batches)
    return limit


def _largest(square: float, linear: float, limit: float) -> float:
    """Return the largest x ≥ 0 with square · x² + linear · x ≤ limit."""
    if limit <= 0:
        return 0.0
    # This form of the root does not subtract nearly equal numbers.
    slope = linear + math.sqrt(linear * linear + 4 * square * limit)
    return 2 * limit / slope if slope else NO_LIMIT_S


# Fleets


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


# Requests


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


def blocks_needed(prompt_tokens: int, max_tokens: int, n: int, block_size: int) -> int:
    """Return the most blocks that `n` choices of one prompt hold, each after `max_tokens` output tokens.

    The router's leases and the worker use the same arithmetic. The choices share full blocks of the prompt.
    The last token of a choice ends it before its KV is written, so a choice stores
    `prompt_tokens + max_tokens - 1` tokens. For a resumed request pass the original prompt and `max_tokens`:
    tokens that moved from output to computed context do not change the sum.
    """
    if prompt_tokens < 1 or max_tokens < 1 or n < 1 or block_size < 1:
        raise ValueError(
            "prompt_tokens, max_tokens, n and block_size must be at least 1, "
            f"not {prompt_tokens}, {max_tokens}, {n} and {block_size}"
        )
    shared = prompt_tokens // block_size
    per_choice = -(-(prompt_tokens + max_tokens - 1) // block_size)
    return shared + n * (per_choice - shared)


@value
class PeerHit:
    """Leading blocks of a prompt that another worker has and lends, as one worker would fetch them."""

    source: str
    """The other worker's key."""
    num_blocks: int
    """From the prompt's first block on, those in host memory and on its disk included."""
    wait_s: float
    """Until the first block comes, with what the other worker reads before."""
    block_s: float
    """For each block."""


@value
class HeldPrefix:
    """The part of a prompt that a worker does not compute."""

    num_tokens: int
    read_s: float = 0.0
    """The time to read it, as far as it is not in the worker's pool."""
    peer: PeerHit | None = None
    """Where the worker fetches it, if it does."""


@value
class QueueAhead:
    """The work ahead of a request, bound to workers or in the queue."""

    tokens: int
    requests: int

    def changed(self, tokens: int, requests: int) -> QueueAhead:
        """Return what is ahead once so much has come, or has gone if negative; never less than nothing."""
        return QueueAhead(max(0, self.tokens + tokens), max(0, self.requests + requests))


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


# The floor of an SLO


@value
class SloFloor:
    """The least time that a request takes alone on an idle worker, in seconds; 0 where it is not known.

    An SLO below it is wrong, not refused. A refusal says "not now", and the client comes back; with an SLO
    that no worker could ever meet it would come back in vain. The floor therefore leaves out all load, and
    every doubt counts for the caller: the quickest worker, the quickest costs that this worker ever reported,
    the quickest of ten such steps, a prompt that shares these steps with nobody and is cached as far as any
    worker has it, and no other time. While the workers stay, the floor only falls: neither a slow spell nor
    costs that are not trusted for a while change it. There is no floor while a worker has measured nothing.
    """

    ttft_s: float = 0.0
    step_s: float = 0.0
    """A decode step of this request alone."""


Known = Sequence[CostModel]
"""The quickest costs a worker has reported (`cost_model.quickest`); empty before it reported any."""


def slo_floor(
    cost: RequestCost, computing: Sequence[tuple[Known, int]], decoding: Sequence[Known]
) -> SloFloor:
    """Return the floor by the costs of the workers that compute prompts, each with its token budget, and of
    the workers that decode.
    """
    ttft_s = step_s = 0.0
    if computing and all(known for known, _ in computing):
        ttft_s = min(
            model.of_chunks.q10 * own_prefill_s(cost, prefill_speed(PrefillView(model, budget)))
            for known, budget in computing
            for model in known
        )
    if decoding and all(decoding):
        context = cost.prompt_tokens
        step_s = min(model.ratio_q10 * lone_step_s(model, context) for known in decoding for model in known)
    return SloFloor(ttft_s, step_s)
