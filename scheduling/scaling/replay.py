"""Replay recorded slots against a number of workers: the share of requests that they would have kept.

Prompts are a fluid that the workers drain, slot by slot, with the random waits of a queue with many servers
on top (Sakasegawa's delay, with an exponential tail). Sequences are a population that refills with every
slot and decays as fast as the workers decode; one more finds a seat as often as a Poisson population of that
mean leaves one. Refused requests cost nothing: no backlog grows past the longest slack.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from scheduling.admission.prediction import (
    DecodeView,
    PrefillSpeed,
    PrefillView,
    decode_step_s,
    prefill_speed,
    seq_capacity,
)
from scheduling.cost.cost_model import CostModel
from scheduling.scaling.demand import SLOT_S, Slot, edge_s, total
from scheduling.step import NO_LIMIT_S
from scheduling.value import value

SMOOTH = 6
"""Slots over which the utilisation behind random waits is averaged."""
FULLEST = 0.95
"""The largest utilisation by all prompts together, those without a promise included."""


@value
class WorkerModel:
    """A typical worker, as admission knows it."""

    cost: CostModel
    token_budget: int
    num_blocks: int
    block_size: int
    max_num_seqs: int
    prompt_limit_s: float = NO_LIMIT_S
    """The longest step that its policy builds of prompts alone."""


@value
class Sequences:
    """The mean sequence, and how many of them a worker may run."""

    output_tokens: float
    context_tokens: float
    seats: int


def prompt_speed(worker: WorkerModel, decodes: float = 0.0, context: float = 0.0) -> PrefillSpeed:
    """Return how fast a worker computes prompts beside some decodes."""
    seqs = min(round(decodes), worker.token_budget - 1)
    view = PrefillView(
        worker.cost, worker.token_budget, seqs, round(seqs * context), limit_s=worker.prompt_limit_s
    )
    return prefill_speed(view)


def work_s(tokens: float, squares: float, speed: PrefillSpeed) -> float:
    """Return a worker's seconds for prompts of so many tokens, whose squares sum up to `squares`."""
    _, _, _, _, c5, c6 = speed.view.cost.coefficients
    # The rate includes each chunk's attention to itself; longer prompts attend to their earlier chunks too.
    before = max(0.0, squares - tokens * speed.chunk) / 2
    return tokens / speed.rate + c5 * before + c6 * before / speed.chunk


def first_tokens(slots: Sequence[Slot], speed: PrefillSpeed) -> Callable[[int], float]:
    """Return a function from a number of workers to the share of promised first tokens in time.

    The share is 1 if none was promised, and 0 if the workers could not have computed all prompts, those
    without a promise included.
    """
    late = speed.view.cost.ratio_q95
    works = [late * work_s(slot.promised_tokens, slot.promised_squares, speed) for slot in slots]
    loads = [_recent_mean(works, place) / SLOT_S for place in range(len(works))]
    slacks = [[(edge_s(place), num) for place, num in enumerate(slot.slacks) if num] for slot in slots]
    whole = total(slots)
    everything_s = work_s(whole.prompt_tokens, whole.prompt_squares, speed)
    promised = whole.promised
    scale_s = sum(works) / promised * (1 + _variation(whole)) / 2 if promised else 0.0

    def kept(num_workers: int) -> float:
        if everything_s > FULLEST * num_workers * SLOT_S * len(slots):
            return 0.0
        if not promised:
            return 1.0
        backlog_s, in_time = 0.0, 0.0
        for work, load, waits in zip(works, loads, slacks, strict=True):
            before_s = backlog_s
            backlog_s = max(0.0, backlog_s + work / num_workers - SLOT_S)
            fluid_s = (before_s + backlog_s) / 2
            for wait_s, num in waits:
                in_time += num * (
                    1 - _waits_longer(wait_s - fluid_s, num_workers, load / num_workers, scale_s)
                )
            backlog_s = min(backlog_s, max(waits[-1][0] if waits else 0.0, before_s))
        return in_time / promised

    return kept


def _recent_mean(works: Sequence[float], place: int) -> float:
    recent = works[max(0, place + 1 - SMOOTH) : place + 1]
    return sum(recent) / len(recent)


def _variation(slot: Slot) -> float:
    """Return the squared coefficient of variation of promised prompts."""
    mean = slot.promised_tokens / slot.promised
    return max(0.0, slot.promised_squares / slot.promised / (mean * mean) - 1) if mean else 0.0


def _waits_longer(wait_s: float, num_workers: int, utilisation: float, scale_s: float) -> float:
    """Return how probably a request waits for longer, in a queue with this many servers."""
    if wait_s < 0 or utilisation >= 1:
        return 1.0
    if utilisation <= 0:
        return 0.0
    delayed = utilisation ** (math.sqrt(2 * (num_workers + 1)) - 1)
    return delayed * math.exp(-num_workers * (1 - utilisation) * wait_s / scale_s) if scale_s else 0.0


def mean_sequence(whole: Slot, worker: WorkerModel, pace_s: float, share: float = 1.0) -> Sequences:
    """Return the mean of what was asked, and how many such sequences keep a pace on a worker.

    `share` is the part of its time that the worker has for decodes.
    """
    count = whole.sequences or 1.0
    prompt, output = whole.context_tokens / count, max(1.0, whole.output_tokens / count)
    context = prompt + output / 2
    view = _decoding(worker, context)
    seats = worker.max_num_seqs
    if pace_s < NO_LIMIT_S:
        seats = seq_capacity(view, seats, pace_s * share / worker.cost.ratio_q95)
    blocks = max(1.0, (prompt + output) / worker.block_size)
    return Sequences(output, context, max(1, min(seats, int(worker.num_blocks / blocks))))


def step_s(worker: WorkerModel, sequences: Sequences, batch: float) -> float:
    """Return the duration of a decode step of such sequences."""
    return decode_step_s(_decoding(worker, sequences.context_tokens), round(batch))


def seats_found(
    slots: Sequence[Slot], worker: WorkerModel, sequences: Sequences, share: float = 1.0
) -> Callable[[int], float]:
    """Return a function from a number of workers to the share of sequences that would have found a seat in
    which their pace is kept.
    """
    counts = [slot.sequences for slot in slots]
    everything, first = sum(counts), counts[:SMOOTH]
    view, per_step = _decoding(worker, sequences.context_tokens), sequences.output_tokens / share

    def kept(num_workers: int) -> float:
        if not everything:
            return 1.0
        seats, found = num_workers * sequences.seats, 0.0
        rate = sum(first) / (len(first) * SLOT_S)
        alive = min(seats, rate * per_step * decode_step_s(view, 1))
        # A few rounds are enough: the step grows far less than the batch does.
        for _ in range(4):
            alive = min(seats, rate * per_step * decode_step_s(view, math.ceil(alive / num_workers)))
        for count in counts:
            lifetime_s = per_step * decode_step_s(view, math.ceil(alive / num_workers))
            stays = math.exp(-SLOT_S / lifetime_s)
            alive = alive * stays + count / SLOT_S * lifetime_s * (1 - stays)
            found += count * _finds_seat(seats, alive)
            alive = min(alive, seats)
        return found / everything

    return kept


def tightest_pace_s(whole: Slot, share: float) -> float:
    """Return the least time between tokens that more than this share of the sequences ask for."""
    seen = 0.0
    for bucket, count in enumerate(whole.paces):
        seen += count
        if seen > share * whole.sequences:
            return edge_s(bucket)
    return NO_LIMIT_S


def _finds_seat(seats: float, mean: float) -> float:
    """Return how probably a Poisson population of this mean leaves a seat, by the normal distribution."""
    if mean <= 0:
        return 1.0
    return 0.5 * (1 + math.erf((seats - 0.5 - mean) / math.sqrt(2 * mean)))


def _decoding(worker: WorkerModel, context: float) -> DecodeView:
    """Return a worker with one sequence of this context: only the mean counts."""
    return DecodeView(worker.cost, 1, round(context), worker.max_num_seqs, worker.num_blocks, 1.0, 1.0)
