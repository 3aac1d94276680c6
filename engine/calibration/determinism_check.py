"""The start-up check of a deterministic worker: logits are the same bits however steps are cut.

How a matrix library computes a product differs from machine to machine. So a deterministic worker first
computes a few sequences, each alone and in one piece, and then again in chunks, token by token and together.
All logits have to be equal bit by bit.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from engine.calibration.cuts import Piece, Steps, decoded_beside, in_chunks, token_by_token
from engine.errors import NotDeterministic
from engine.execution.model_runner import ModelRunner
from engine.model.attention.step_batch import StepBatch
from engine.starting import OnProgress, Phase, ignore_progress

LENGTHS = (150, 37, 9)
"""Lengths of the sequences, if the model and the pool have room: over a tile of positions, under one, and a
few. If contexts are summed in spans, the first sequence is two spans longer."""
_STRIDE = 7919
_CHUNKS = ((64, 16, 3), (50, 5, 2))
_BESIDE = (20, 4)
"""Sizes of the chunks that come while the first sequence is decoded."""


def check_determinism(runner: ModelRunner, on_progress: OnProgress = ignore_progress) -> str:
    """Check that logits do not depend on how steps are cut; return a digest of the logits.

    Workers with equal digests give equal logits. Overwrites the pool, and calls `on_progress` for each step.
    Raises NotDeterministic if logits differ.
    """
    lengths = _lengths(runner)
    alone: Steps = [[Piece(sequence, 0, length)] for sequence, length in enumerate(lengths)]
    ways = _ways(lengths)
    total = len(alone) + sum(len(steps) for _, steps in ways)
    numbers = itertools.count(1)

    def step_done() -> None:
        on_progress(Phase.PROVING, next(numbers), total)

    on_progress(Phase.PROVING, 0, total)
    expected = _run(runner, lengths, alone, step_done)
    for way, steps in ways:
        found = _run(runner, lengths, steps, step_done)
        for sequence, logits in enumerate(found):
            if not same_bits(logits, expected[sequence]):
                differ = (logits != expected[sequence]).any(-1).nonzero().view(-1).tolist()
                raise NotDeterministic(way, lengths[sequence], differ)
    digest = hashlib.blake2b(digest_size=16)
    for logits in expected:
        digest.update(logits.contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return digest.hexdigest()


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors have the same bytes: a zero's sign counts, and a NaN equals itself."""
    left, right = first.contiguous().view(torch.uint8), second.contiguous().view(torch.uint8)
    return first.dtype == second.dtype and torch.equal(left, right)


def _lengths(runner: ModelRunner) -> list[int]:
    size = runner.pool.layout.block_size
    room = runner.pool.num_blocks // len(LENGTHS) * size
    if room < 2:
        needed = len(LENGTHS) * -(-2 // size)
        raise ValueError(
            f"num_blocks is {runner.pool.num_blocks}; accepted with --deterministic: {needed} or more"
        )
    first, *others = LENGTHS
    lengths = (first + 2 * (runner.span or 0), *others)
    return [min(length, room, runner.model.facts.max_context) for length in lengths]


def _ways(lengths: Sequence[int]) -> list[tuple[str, Steps]]:
    """Return ways to cut the same tokens into steps, by name."""
    chunks = [
        (f"in chunks of {', '.join(map(str, sizes))}, together", in_chunks(lengths, sizes))
        for sizes in _CHUNKS
    ]
    return [
        *chunks,
        ("token by token, alone", token_by_token(lengths, together=False)),
        ("token by token, together", token_by_token(lengths, together=True)),
        ("decoded while chunks of others come", decoded_beside(lengths, _BESIDE)),
    ]


def _run(
    runner: ModelRunner, lengths: Sequence[int], steps: Steps, step_done: Callable[[], None]
) -> list[Tensor]:
    """Run the steps; return the logits of every token of each sequence, [length, vocab]."""
    found: list[list[Tensor]] = [[] for _ in lengths]
    for pieces in steps:
        logits = runner.forward(_make_batch(runner, pieces))
        begin = 0
        for piece in pieces:
            end = begin + piece.end - piece.begin
            found[piece.sequence].append(logits[begin:end])
            begin = end
        step_done()
    return [torch.cat(parts) for parts in found]


def _make_batch(runner: ModelRunner, pieces: Sequence[Piece]) -> StepBatch:
    """Return the batch of a step, with logits of every token."""
    width = runner.pool.num_blocks // len(LENGTHS)
    tables = torch.tensor([piece.sequence for piece in pieces])[:, None] * width + torch.arange(width)
    chunks = [(piece.begin, piece.end - piece.begin) for piece in pieces]
    sequences = [torch.tensor([piece.sequence]).expand(piece.end - piece.begin) for piece in pieces]

    def token_ids(positions: Tensor) -> Tensor:
        return (positions * _STRIDE + torch.cat(sequences)) % runner.model.facts.vocab_size

    device = runner.model.device
    batch = StepBatch.of_chunks(chunks, tables, runner.pool.layout.block_size, token_ids, device)
    return replace(batch, logit_rows=torch.arange(len(batch.token_ids), device=device))
