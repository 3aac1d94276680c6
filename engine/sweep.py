"""Time a grid of real steps at start-up, so that the first request is already judged by measured costs."""

from __future__ import annotations

import time

import torch

from engine.model_runner import ModelRunner
from engine.step_batch import StepBatch
from engine.sweep_grid import Step, grid
from scheduling.cost_model import Sample

MAX_SECONDS = 1.5
MAX_ROUNDS = 6


def sweep(
    runner: ModelRunner, *, max_num_seqs: int, token_budget: int, max_seconds: float = MAX_SECONDS
) -> list[Sample]:
    """Measured steps for `scheduling.cost_fit.fit`, in about `max_seconds`; one round at least.

    Each grid point is run once uncounted, then up to MAX_ROUNDS times, round by round, so that what disturbs
    the machine for a moment does not fall on one point alone. Writes all over the pool: nothing may be in it.
    """
    steps = grid(max_num_seqs, token_budget, _longest(runner))
    batches = [make_batch(runner, step) for step in steps]
    left = max_seconds - sum(_run(runner, batch) for batch in batches)
    samples: list[Sample] = []
    for _ in range(MAX_ROUNDS):
        measured = [_run(runner, batch) for batch in batches]
        samples += [(step.shape, seconds) for step, seconds in zip(steps, measured, strict=True)]
        left -= sum(measured)
        if left < sum(measured):
            break
    return samples


def warm_up(runner: ModelRunner, *, max_num_seqs: int, token_budget: int) -> None:
    """The largest steps of the grid, so that what is made on first use is not made while somebody waits."""
    steps = grid(max_num_seqs, token_budget, _longest(runner))
    for step in (
        max(steps, key=lambda step: step.num_decodes),
        max(steps, key=lambda step: step.chunk or ()),
    ):
        _run(runner, make_batch(runner, step))


def _longest(runner: ModelRunner) -> int:
    return min(runner.model.facts.max_context, runner.pool.num_blocks * runner.pool.layout.block_size)


def make_batch(runner: ModelRunner, step: Step) -> StepBatch:
    """The step over blocks taken in turn, with one row of logits for each sequence."""
    sequences = [(step.decode_context - 1, 1)] * step.num_decodes
    if step.chunk is not None:
        sequences.append(step.chunk)
    block_size, num_blocks = runner.pool.layout.block_size, runner.pool.num_blocks
    width = max(-(-(before + tokens) // block_size) for before, tokens in sequences)
    tables = torch.arange(len(sequences) * width).view(len(sequences), width) % num_blocks
    positions = [torch.arange(before, before + tokens) for before, tokens in sequences]
    slots = [
        table[place // block_size] * block_size + place % block_size
        for table, place in zip(tables, positions, strict=True)
    ]
    ends = torch.tensor([tokens for _, tokens in sequences]).cumsum(0)
    position = torch.cat(positions)
    device = runner.model.device
    return StepBatch(
        token_ids=(position % runner.model.facts.vocab_size).to(device),
        positions=position.to(device),
        slot_mapping=torch.cat(slots).to(device),
        block_tables=tables.to(device, torch.int32),
        context_lens=torch.tensor([sum(lengths) for lengths in sequences]).to(device, torch.int32),
        cu_seqlens_q=torch.cat((torch.zeros(1), ends)).to(device, torch.int32),
        logit_rows=(ends - 1).to(device),
        max_query_len=max(tokens for _, tokens in sequences),
        max_context_len=max(before + tokens for before, tokens in sequences),
    )


def _run(runner: ModelRunner, batch: StepBatch) -> float:
    """Seconds until the step's greedy tokens are on the host, which on a GPU is when it is over."""
    started = time.perf_counter()
    runner.forward(batch).argmax(dim=-1).tolist()
    return time.perf_counter() - started
