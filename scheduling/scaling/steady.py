"""The share of requests that a number of workers keeps its promises to, under a steady load.

Prompts wait in a queue with many servers (Sakasegawa's delay, with an exponential tail), one for each step
that a worker has in flight. Sequences are a
Poisson population; one more finds a seat as often as the population leaves one.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

from scheduling.cost_model import CostModel
from scheduling.prediction import (
    DecodeView,
    PrefillSpeed,
    PrefillView,
    decode_step_s,
    num_micro_batches,
    prefill_speed,
    seq_capacity,
    share,
)
from scheduling.scaling.demand import SLOT_S, Slot, edge_s
from scheduling.step import NO_LIMIT_S
from scheduling.value import value

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
    num_stages: int = 1
    """Its pipeline stages."""


@value
class Sequences:
    """The mean sequence, and how many of them a worker may run."""

    output_tokens: float
    context_tokens: float
    seats: int


def prompt_speed(worker: WorkerModel, decodes: float = 0.0, context: float = 0.0) -> PrefillSpeed:
    """Return how fast a worker computes prompts beside some decodes."""
    seqs = min(share(round(decodes), worker.num_stages), worker.token_budget - 1)
    view = PrefillView(
        worker.cost,
        worker.token_budget,
        seqs,
        round(seqs * context),
        limit_s=worker.prompt_limit_s,
        num_stages=worker.num_stages,
    )
    return prefill_speed(view)


def work_s(tokens: float, squares: float, speed: PrefillSpeed) -> float:
    """Return a worker's seconds for prompts of so many tokens, whose squares sum up to `squares`."""
    _, _, _, _, c5, c6 = speed.view.cost.coefficients
    # The rate includes each chunk's attention to itself; longer prompts attend to their earlier chunks too.
    before, num_stages = max(0.0, squares - tokens * speed.chunk) / 2, speed.view.num_stages
    return tokens / speed.rate + c5 * before / num_stages + c6 * before / speed.chunk / num_stages


def first_tokens(mean: Slot, speed: PrefillSpeed) -> Callable[[int], float]:
    """Return a function from a number of workers to the share of promised first tokens in time, where every
    slot is like `mean`.

    The share is 1 if none was promised, and 0 if the workers cannot compute all prompts, those without a
    promise included. Prompts are computed in the order in which they are due. So a prompt waits for those
    that have no more time to spare, and for what is being computed: priorities without preemption (Cobham,
    "Priority assignment in waiting line problems", 1954), here with many servers.
    """
    late, promised = speed.view.cost.of_chunks.q95, mean.promised
    work = work_s(mean.promised_tokens, mean.promised_squares, speed)
    everything = work_s(mean.prompt_tokens, mean.prompt_squares, speed) / SLOT_S
    due_first = accumulate(mean.slacks)
    slacks = [
        (edge_s(place) / late, num, before / promised)
        for place, (num, before) in enumerate(zip(mean.slacks, due_first, strict=True))
        if num
    ]
    num_servers = num_micro_batches(speed.view.num_stages)
    scale_s = num_servers * work / promised * (1 + _variation(mean)) / 2 if promised else 0.0

    def kept(num_workers: int) -> float:
        if everything > FULLEST * num_workers:
            return 0.0
        if not promised:
            return 1.0
        utilisation = work / SLOT_S / num_workers
        queue = _Queue(num_servers * num_workers, utilisation, scale_s)
        late_ones = (num * queue.waits_longer(wait_s, share) for wait_s, num, share in slacks)
        return 1 - sum(late_ones) / promised

    return kept


def _variation(slot: Slot) -> float:
    """Return the squared coefficient of variation of promised prompts."""
    mean = slot.promised_tokens / slot.promised
    return max(0.0, slot.promised_squares / slot.promised / (mean * mean) - 1) if mean else 0.0


@dataclass(frozen=True, slots=True)
class _Queue:
    """Prompts that wait for servers; `scale_s` is the time of a prompt, longer where prompts are unlike."""

    num_servers: int
    utilisation: float
    scale_s: float

    def waits_longer(self, wait_s: float, share: float) -> float:
        """Return how probably a prompt waits for longer, where this share of the prompts is due no later."""
        if wait_s < 0 or self.utilisation >= 1:
            return 1.0
        if self.utilisation <= 0 or not self.scale_s:
            return 0.0
        delayed: float = self.utilisation ** (math.sqrt(2 * (self.num_servers + 1)) - 1)
        spare = self.num_servers * (1 - self.utilisation * share)
        return delayed * math.exp(-spare * wait_s / self.scale_s)


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
    """Return the time between decode steps of such sequences."""
    return decode_step_s(_decoding(worker, sequences.context_tokens), round(batch))


def alive(mean: Slot, worker: WorkerModel, sequences: Sequences, num_workers: float, share: float) -> float:
    """Return how many sequences run at once where every slot is like `mean`: as many as begin while one runs.

    They have all seats where workers with every seat taken could not keep up.
    """
    view, seats = _decoding(worker, sequences.context_tokens), sequences.seats
    steps = mean.sequences / SLOT_S * sequences.output_tokens / share

    def keeps_up(batch: int) -> bool:
        return num_workers * batch >= steps * decode_step_s(view, batch)

    if not keeps_up(seats):
        return num_workers * seats
    return steps * decode_step_s(view, 1 + bisect_left(range(1, seats), True, key=keeps_up))


def seats_found(
    mean: Slot, worker: WorkerModel, sequences: Sequences, share: float = 1.0
) -> Callable[[int], float]:
    """Return a function from a number of workers to the share of sequences that find a seat in which their
    pace is kept, where every slot is like `mean`.
    """
    return lambda num_workers: _finds_seat(
        num_workers * sequences.seats, alive(mean, worker, sequences, num_workers, share)
    )


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
    return DecodeView(
        worker.cost,
        1,
        round(context),
        worker.max_num_seqs,
        worker.num_blocks,
        mean_remaining_tokens=1.0,
        mean_blocks=1.0,
        num_stages=worker.num_stages,
    )
