"""The start-up check of a deterministic worker: logits are the same bits however steps are cut.

How a matrix library computes a product differs from machine to machine. So a deterministic worker first
computes a few sequences, each alone and in one piece, and then again in chunks, token by token and together.
All logits have to be equal bit by bit.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.errors import NotDeterministic
from engine.execution.model_runner import ModelRunner
from engine.model.step_batch import StepBatch
from engine.starting import OnProgress, Phase, ignore_progress

LENGTHS = (150, 37, 9)
"""Lengths of the sequences, if the model and the pool have room: over a tile of positions, under one, and a
few. If contexts are summed in spans, the first sequence is two spans longer."""
NUM_TAIL = 3
"""Number of last tokens of a sequence that are decoded one by one."""
_STRIDE = 7919
_CHUNKS = ((64, 16, 3), (50, 5, 2))


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens `begin` to `end` of a sequence, computed in one step."""

    sequence: int
    begin: int
    end: int


Steps = list[list[Piece]]


def check_determinism(runner: ModelRunner, on_progress: OnProgress = ignore_progress) -> str:
    """Check that logits do not depend on how steps are cut; return a digest of the logits.

    Workers with equal digests give equal logits. Overwrites the pool, and calls `on_progress` for each step.
    Raises NotDeterministic if logits differ.
    """
    lengths = _lengths(runner)
    alone: Steps = [[Piece(sequence, 0, length)] for sequence, length in enumerate(lengths)]
    ways = list(_ways(lengths))
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


def _ways(lengths: Sequence[int]) -> Iterator[tuple[str, Steps]]:
    """Yield ways to cut the same tokens into steps, by name."""
    for sizes in _CHUNKS:
        named = ", ".join(map(str, sizes))
        cuts = [
            list(_cut(which, length, size))
            for which, (length, size) in enumerate(zip(lengths, sizes, strict=True))
        ]
        yield f"in chunks of {named}, together", _together(cuts)
    heads = [Piece(which, 0, length - _tail(length)) for which, length in enumerate(lengths)]
    tails = [
        [Piece(which, place, place + 1) for place in range(length - _tail(length), length)]
        for which, length in enumerate(lengths)
    ]
    one_by_one = [*heads, *(piece for tail in tails for piece in tail)]
    yield "token by token, alone", [[piece] for piece in one_by_one]
    yield "token by token, together", [heads, *_together(tails)]
    # The longest is decoded while the others' prompts are computed in chunks, in the reverse order.
    chunks = _together([tails[0], list(_cut(1, lengths[1], 20)), list(_cut(2, lengths[2], 4))])
    yield "decoded while chunks of others come", [[heads[0]], *(step[::-1] for step in chunks)]


def _tail(length: int) -> int:
    return min(NUM_TAIL, length - 1)


def _cut(sequence: int, length: int, size: int) -> Iterator[Piece]:
    for begin in range(0, length, size):
        yield Piece(sequence, begin, min(begin + size, length))


def _together(cuts: Sequence[Sequence[Piece]]) -> Steps:
    """Put the next piece of every sequence into each step, while it has one."""
    longest = max(len(pieces) for pieces in cuts)
    return [[pieces[index] for pieces in cuts if index < len(pieces)] for index in range(longest)]


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
