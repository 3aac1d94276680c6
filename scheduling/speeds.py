"""How fast a worker computes prompts, and how fast it decodes, by its step costs and its load.

These are formulas over numbers alone. All times are in seconds.

A worker's layers may be split over pipeline stages. A step passes the stages in turn, and takes an equal
share of its time in each. A sequence is in one step at a time, so it has its next step only after a whole
pass. The formulas hold for one stage as well, whose steps follow one another.
"""

from __future__ import annotations

import math

from scheduling.cost.cost_model import CostModel
from scheduling.packing import GRAIN_TOKENS
from scheduling.step import NO_LIMIT_S
from scheduling.value import value

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


# Prompts and decodes


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
