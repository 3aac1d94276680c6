"""What a request would experience: its time to first token and its time per token.

    TTFT = max(prefill work ahead / prefill rate, wait for a decode slot) + rest of the step + own prompt
    TPOT = cost of the decode steps it will join

Both are then scaled by quantiles of observed / predicted, so that what the formulas leave out (hand-over,
network, neighbours on the same cores) is learnt instead of assumed. All times are seconds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from scheduling.cost_model import CostModel, StepShape


@dataclass(frozen=True, slots=True)
class PrefillView:
    """A worker that computes prompts; the decodes are those that share its steps."""

    cost: CostModel
    token_budget: int
    bound_tokens: int
    num_decodes: int = 0
    decode_context: int = 0


@dataclass(frozen=True, slots=True)
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
    """Blocks that come free when one sequence ends."""


@dataclass(frozen=True, slots=True)
class FleetView:
    """What the prediction knows of the fleet."""

    prefill: tuple[PrefillView, ...]
    decode: tuple[DecodeView, ...]
    aggregated: bool
    prefill_load: float = 0.0
    """Share of time in which prompts are computed; when aggregated, such steps carry the decodes too."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request brings along."""

    prompt_tokens: int
    cached_tokens: int
    blocks: int
    num_seqs: int


@dataclass(frozen=True, slots=True)
class Ahead:
    """What stands before it in the queue."""

    tokens: int
    requests: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """Medians by the formulas, before any learnt ratio."""

    ttft_s: float
    tpot_s: float
    wait_s: float
    """The part of ttft_s before the request's own work."""
    batch_size: int
    """Sequences in the decode steps it would join."""


def predict(ask: Ask, ahead: Ahead, fleet: FleetView) -> Prediction:
    """Predict one request; the fleet has at least one worker for each part."""
    wait_s = max(prefill_wait_s(ahead, fleet), slot_wait_s(ask, ahead, fleet))
    own_s = min(own_prefill_s(ask, view) for view in fleet.prefill)
    tpot_s, batch_size = _join(ask, ahead, fleet)
    return Prediction(wait_s + own_s, tpot_s, wait_s, batch_size)


def full_step_s(view: PrefillView) -> float:
    """A step filled to the budget by prompts, with the decodes that share it."""
    chunk = max(1, view.token_budget - view.num_decodes)
    return _cost_s(view.cost, _mixed(view, chunk, 0))


def prefill_rate(views: Sequence[PrefillView]) -> float:
    """Prompt tokens the workers compute per second together."""
    return sum(max(1, view.token_budget - view.num_decodes) / full_step_s(view) for view in views)


def prefill_wait_s(ahead: Ahead, fleet: FleetView) -> float:
    """Until the prompts before this one are computed, with the rest of the step that runs."""
    bound = sum(view.bound_tokens for view in fleet.prefill)
    busy = min(
        full_step_s(view) / 2 if view.bound_tokens or view.num_decodes else 0.0 for view in fleet.prefill
    )
    return busy + (ahead.tokens + bound) / prefill_rate(fleet.prefill)


def slot_wait_s(ask: Ask, ahead: Ahead, fleet: FleetView) -> float:
    """Until enough running sequences have ended for everyone ahead and this one."""
    seqs_short = (
        ahead.requests + ask.num_seqs - sum(max(0, v.seq_capacity - v.num_seqs) for v in fleet.decode)
    )
    mean_blocks = max((view.mean_blocks for view in fleet.decode), default=0.0) or float(ask.blocks)
    free_blocks = sum(view.free_blocks for view in fleet.decode)
    blocks_short = ask.blocks + ahead.requests * mean_blocks - free_blocks
    ends_needed = max(float(seqs_short), blocks_short / mean_blocks if mean_blocks else 0.0)
    if ends_needed <= 0:
        return 0.0
    rate = sum(_ends_per_s(view) for view in fleet.decode)
    return ends_needed / rate if rate > 0 else 0.0


def _ends_per_s(view: DecodeView) -> float:
    if view.num_seqs == 0:
        return 0.0
    return view.num_seqs / (max(1.0, view.mean_remaining_tokens) * decode_step_s(view, view.num_seqs))


def decode_step_s(view: DecodeView, batch_size: int) -> float:
    """A decode step of this many sequences with the context they have on average."""
    mean_context = view.context_tokens / view.num_seqs if view.num_seqs else 0.0
    return _cost_s(view.cost, StepShape.of(batch_size, round(mean_context * batch_size), ()))


def own_prefill_s(ask: Ask, view: PrefillView) -> float:
    """The request's own prompt, chunk by chunk at the budget."""
    chunk = max(1, view.token_budget - view.num_decodes)
    total_s, done = 0.0, min(ask.cached_tokens, ask.prompt_tokens - 1)
    while done < ask.prompt_tokens:
        size = min(chunk, ask.prompt_tokens - done)
        total_s += _cost_s(view.cost, _mixed(view, size, done))
        done += size
    return total_s


def seq_capacity(view: DecodeView, max_seqs: int, tpot_s: float) -> int:
    """Most sequences whose decode step stays within `tpot_s`; at least 1, or nothing would ever run."""
    low, high = 1, max_seqs
    while low < high:
        middle = (low + high + 1) // 2
        if decode_step_s(view, middle) <= tpot_s:
            low = middle
        else:
            high = middle - 1
    return low


def _join(ask: Ask, ahead: Ahead, fleet: FleetView) -> tuple[float, int]:
    """The least decode step this request can join, with the queue ahead spread over the workers."""
    share = math.ceil(ahead.requests / len(fleet.decode))
    best: tuple[float, int] | None = None
    for view, prefill in zip(fleet.decode, _sharing(fleet), strict=True):
        batch_size = max(ask.num_seqs, min(view.seq_capacity, view.num_seqs + share + ask.num_seqs))
        step_s = decode_step_s(view, batch_size)
        if prefill is not None:
            step_s += fleet.prefill_load * max(0.0, full_step_s(prefill) - step_s)
        if best is None or step_s < best[0]:
            best = step_s, batch_size
    assert best is not None, "predict is asked only when a decode worker lives"
    return best


def _sharing(fleet: FleetView) -> Sequence[PrefillView | None]:
    return fleet.prefill if fleet.aggregated else [None] * len(fleet.decode)


def _mixed(view: PrefillView, chunk: int, context: int) -> StepShape:
    return StepShape.of(view.num_decodes, view.decode_context, ((context, chunk),))


def _cost_s(cost: CostModel, shape: StepShape) -> float:
    """A worker that measured nothing yet may call steps free; none takes less than a microsecond."""
    return max(1e-6, cost.predict(shape))


WINDOW = 64
MAX_AGE_S = 15.0
ENOUGH = 8
"""Own samples from which a bucket speaks for itself."""
BUCKETS = 8
PRIOR = (0.6, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 1.8)
"""Believed of observed / predicted until enough was seen: the formulas leave out hand-over and network."""


class LearntRatios:
    """Quantiles of observed / predicted, bucketed by the work that was ahead.

    Samples age: were they kept, a bad minute would refuse everything, and nothing admitted could ever prove
    that it is over.
    """

    def __init__(self) -> None:
        self._buckets: list[deque[tuple[float, float]]] = [deque(maxlen=WINDOW) for _ in range(BUCKETS)]
        self._all: deque[tuple[float, float]] = deque(maxlen=WINDOW)

    def add(self, work_ahead: float, ratio: float, now: float) -> None:
        """Learn from one request that had `work_ahead` before it."""
        self._buckets[_bucket(work_ahead)].append((now, ratio))
        self._all.append((now, ratio))

    def quantiles(self, work_ahead: float, now: float) -> tuple[float, float]:
        """The 10 % and 90 % quantiles for a request that has `work_ahead` before it."""
        fresh = _fresh(self._buckets[_bucket(work_ahead)], now)
        if len(fresh) < ENOUGH:
            fresh = _fresh(self._all, now)
        if len(fresh) < ENOUGH:
            fresh += PRIOR
        fresh.sort()
        return _quantile(fresh, 0.1), _quantile(fresh, 0.9)


def _bucket(work_ahead: float) -> int:
    return min(BUCKETS - 1, int(math.log2(1.0 + work_ahead / 64.0)))


def _fresh(samples: Sequence[tuple[float, float]], now: float) -> list[float]:
    return [ratio for at, ratio in samples if now - at <= MAX_AGE_S]


def _quantile(ordered: Sequence[float], q: float) -> float:
    """The smallest sample that at least a share q does not exceed: it errs to the late side."""
    return ordered[min(len(ordered) - 1, math.ceil(q * (len(ordered) + 1)) - 1)]


LENGTH_WEIGHT = 0.1


@dataclass(slots=True)
class OutputLengths:
    """Mean output length, learnt; before the first end, what people ask chat models for."""

    mean_tokens: float = 128.0

    def add(self, output_tokens: int) -> None:
        """Learn from one choice that ended by itself."""
        self.mean_tokens += LENGTH_WEIGHT * (output_tokens - self.mean_tokens)

    def expected(self, max_tokens: int, *, ignore_eos: bool) -> float:
        """Tokens a choice will probably have."""
        return float(max_tokens) if ignore_eos else min(float(max_tokens), self.mean_tokens)
