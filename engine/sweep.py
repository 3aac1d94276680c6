"""Time a grid of real steps at start-up, so that the first request is already judged by measured costs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from engine.model_runner import ModelRunner
from engine.step_batch import StepBatch
from scheduling.cost_model import Sample, StepShape

MAX_SECONDS = 1.5
MAX_ROUNDS = 6
DECODE_COUNTS = (1, 4, 16, 64, 256)
DECODE_CONTEXTS = (32, 256, 1024)
CHUNK_TOKENS = (16, 64, 256, 1024)
CHUNK_CONTEXTS = (0, 256, 1536)


@dataclass(frozen=True, slots=True)
class Step:
    """One point of the grid: decodes of equal context, and at most one chunk (context before it, tokens)."""

    num_decodes: int
    decode_context: int
    chunk: tuple[int, int] | None = None

    @property
    def shape(self) -> StepShape:
        chunks = [] if self.chunk is None else [self.chunk]
        return StepShape.of(self.num_decodes, self.num_decodes * self.decode_context, chunks)


def sweep(
    runner: ModelRunner, *, max_num_seqs: int, token_budget: int, max_seconds: float = MAX_SECONDS
) -> list[Sample]:
    """Measured steps for `scheduling.cost_fit.fit`, in about `max_seconds`; one round at least.

    Each grid point is run once uncounted, then up to MAX_ROUNDS times, round by round, so that what disturbs
    the machine for a moment does not fall on one point alone. Writes all over the pool: nothing may be in it.
    """
    longest = min(runner.model.facts.max_context, runner.pool.num_blocks * runner.pool.layout.block_size)
    steps = grid(max_num_seqs, token_budget, longest)
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


def grid(max_num_seqs: int, token_budget: int, max_context: int) -> list[Step]:
    """Decodes alone, chunks alone and both; contexts vary apart from counts and from chunk lengths."""
    counts = _up_to(DECODE_COUNTS, max_num_seqs)
    contexts = _up_to(DECODE_CONTEXTS, max_context)
    chunks = list(_chunks(token_budget, max_context))
    decodes = [Step(count, context) for count in counts for context in contexts]
    mixed = [Step(count, contexts[0], chunk) for count in counts[1:3] for chunk in chunks[:: len(counts)]]
    return decodes + [Step(0, 0, chunk) for chunk in chunks] + mixed


def _up_to(values: Sequence[int], most: int) -> list[int]:
    """Those of `values` below `most`, and `most` where it cuts them short."""
    below = [value for value in values if value < most]
    return [*below, most] if len(below) < len(values) else below


def _chunks(token_budget: int, max_context: int) -> Iterator[tuple[int, int]]:
    for tokens in _up_to(CHUNK_TOKENS, min(token_budget, max_context)):
        for before in CHUNK_CONTEXTS:
            if before + tokens <= max_context:
                yield before, tokens


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
