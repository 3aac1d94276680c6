"""Time a grid of real steps at start-up, so that the first request is already judged by measured costs.

The sweep takes the small steps first and stops when its time is over, so a slow machine does not wait for its
largest steps. Their cost is learnt later, from steps that are served.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from engine.calibration.grid import Step, grid
from engine.execution.model_runner import ModelRunner
from engine.model.attention.step_batch import StepBatch
from engine.starting import OnProgress, Phase, ignore_progress
from scheduling.cost.cost_fit import least_chunk_s
from scheduling.cost_model import Sample, StepShape

SECONDS = 1.5
"""Time for a sweep, if one round of the whole grid takes no longer."""
MAX_SECONDS = 8.0
"""Time for a sweep, and for a warm-up, on any machine; a single step may exceed it."""
MAX_ROUNDS = 6
CHECK_SECONDS = 0.25
"""Time for `overstatement`; its first step may exceed it."""
CHECK_RUNS = 4


@dataclass(frozen=True, slots=True)
class Sweep:
    """Measured steps for `scheduling.cost.cost_fit.fit`."""

    samples: list[Sample]
    is_whole: bool = True
    """False if there was no time for the larger steps of the grid."""


def sweep(
    runner: ModelRunner,
    *,
    max_num_seqs: int,
    token_budget: int,
    seconds: float = SECONDS,
    max_seconds: float = MAX_SECONDS,
    on_progress: OnProgress = ignore_progress,
) -> Sweep:
    """Run each step of the grid once uncounted, then in rounds, as often as `seconds` allow.

    There are 1 to MAX_ROUNDS rounds; in rounds, a short disturbance of the machine does not fall on one step
    alone. If half of `max_seconds` is too little to run every step once, only the steps that were run are
    measured, which always includes the first. Overwrites the pool.
    """
    steps = sorted(_grid(runner, max_num_seqs, token_budget), key=_size)
    batches: list[StepBatch] = []
    first: list[float] = []
    for step in steps:
        on_progress(Phase.MEASURING, len(first), len(steps))
        batch = make_batch(runner, step)
        if first:
            at_most = first[-1] * len(batch.token_ids) / len(batches[-1].token_ids)
            if sum(first) + at_most > max_seconds / 2:
                break
        batches.append(batch)
        first.append(_run(runner, batch))
    is_whole = len(first) == len(steps)
    left = (seconds if is_whole else max_seconds) - sum(first)
    shapes = [step.shape for step in steps[: len(first)]]
    # A first run may take longer than later ones, by little where steps take seconds.
    samples = [] if is_whole else list(zip(shapes, first, strict=True))
    for _ in range(MAX_ROUNDS):
        measured = [_run(runner, batch) for batch in batches]
        samples += zip(shapes, measured, strict=True)
        left -= sum(measured)
        if left < sum(measured):
            break
    return Sweep(samples, is_whole)


def overstatement(
    samples: Iterable[Sample], runner: ModelRunner, *, max_num_seqs: int, token_budget: int
) -> float:
    """Return how many times longer small steps took in an earlier sweep's `samples` than they take now.

    It is the median over the smallest steps of the grid, each by its quickest run then and now: other work on
    the machine only makes steps longer. A step that is missing in `samples` counts as infinitely longer.
    Overwrites the pool.
    """
    earlier: dict[StepShape, float] = {}
    for shape, seconds in samples:
        earlier[shape] = min(seconds, earlier.get(shape, seconds))
    ratios: list[float] = []
    give_up_at = time.perf_counter() + CHECK_SECONDS
    for step in sorted(_grid(runner, max_num_seqs, token_budget), key=_size):
        if ratios and time.perf_counter() >= give_up_at:
            break
        batch = make_batch(runner, step)
        ratios.append(earlier.get(step.shape, math.inf) / min(_run(runner, batch) for _ in range(CHECK_RUNS)))
    return statistics.median(ratios)


def chunk_floor_s(runner: ModelRunner, samples: Sequence[Sample]) -> float:
    """Return the least time of a step with a chunk, where it has one.

    Replayed steps cost the host nothing; a step with a chunk is launched kernel by kernel.
    """
    return least_chunk_s(samples) if runner.replays_decodes else 0.0


def _size(step: Step) -> tuple[float, ...]:
    """Return a key that orders steps from cheap to expensive, as far as that holds on every machine."""
    shape = step.shape
    return shape.num_tokens, shape.decode_context + shape.chunk_attention


def warm_up(
    runner: ModelRunner, *, max_num_seqs: int, token_budget: int, max_seconds: float = MAX_SECONDS
) -> None:
    """Run the largest steps of the grid, so that first-use costs are paid before the first request.

    Steps that would take over `max_seconds`, by the smallest step's time for each token, are left out.
    """
    steps = _grid(runner, max_num_seqs, token_budget)
    smallest = make_batch(runner, min(steps, key=_size))
    _run(runner, smallest)
    per_token_s = _run(runner, smallest) / len(smallest.token_ids)
    for step in (
        max(steps, key=lambda step: step.num_decodes),
        max(steps, key=lambda step: step.chunk or ()),
    ):
        if per_token_s * step.shape.num_tokens <= max_seconds:
            _run(runner, make_batch(runner, step))


def _grid(runner: ModelRunner, max_num_seqs: int, token_budget: int) -> list[Step]:
    longest = min(runner.model.facts.max_context, runner.pool.num_blocks * runner.pool.layout.block_size)
    return grid(max_num_seqs, token_budget, longest, has_floor=runner.replays_decodes)


def make_batch(runner: ModelRunner, step: Step) -> StepBatch:
    """Return the batch of a step over blocks in turn, with one row of logits for each sequence."""
    chunks = [(step.decode_context - 1, 1)] * step.num_decodes
    if step.chunk is not None:
        chunks.append(step.chunk)
    block_size, vocab_size = runner.pool.layout.block_size, runner.model.facts.vocab_size
    width = max(-(-sum(chunk) // block_size) for chunk in chunks)
    tables = torch.arange(len(chunks) * width).view(len(chunks), width) % runner.pool.num_blocks
    return StepBatch.of_chunks(
        chunks, tables, block_size, lambda positions: positions % vocab_size, runner.model.device
    )


def _run(runner: ModelRunner, batch: StepBatch) -> float:
    """Run a step; return the seconds until its greedy tokens are on the host."""
    started = time.perf_counter()
    runner.forward(batch).argmax(dim=-1).tolist()
    return time.perf_counter() - started
