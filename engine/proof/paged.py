"""Runs the same tokens by Baton: over blocks, cut into steps in several ways, beside other sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.calibration.cuts import Piece, Steps, decoded_beside, in_chunks, token_by_token
from engine.execution.model_runner import ModelRunner
from engine.model.attention.step_batch import StepBatch
from engine.proof.layers import Layers, watched
from engine.proof.sequences import Sequences
from engine.proof.stock import LOGITS, Outputs

_WHOLE = (1 << 20,) * 4
_CHUNKS = ((64, 16, 3, 5), (33, 5, 2, 24))
_BESIDE = (20, 4, 7)
"""Sizes of chunks for each sequence of `engine.proof.sequences`; the last: for each but the first."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to compute the sequences: before step `moves_at`, all blocks move to others."""

    name: str
    steps: Steps
    moves_at: int | None = None


def make_ways(lengths: Sequence[int]) -> list[Way]:
    """Return the ways in which sequences of these lengths are computed."""
    (whole,) = in_chunks(lengths, _WHOLE)
    chunks = [
        Way(f"in chunks of {', '.join(map(str, sizes))}, together", in_chunks(lengths, sizes))
        for sizes in _CHUNKS
    ]
    resumed = in_chunks(lengths, _CHUNKS[0])
    return [
        Way("alone", [[piece] for piece in whole]),
        *chunks,
        Way("token by token, alone", token_by_token(lengths, together=False)),
        Way("token by token, together", token_by_token(lengths, together=True)),
        Way("decoded while chunks of others come", decoded_beside(lengths, _BESIDE)),
        Way("resumed in other blocks", resumed, len(resumed) // 2),
    ]


def num_blocks_for(lengths: Sequence[int], block_size: int) -> int:
    """Return the size of a pool for sequences of these lengths, with room to move all of them."""
    return 2 * len(lengths) * _width(lengths, block_size)


def _width(lengths: Sequence[int], block_size: int) -> int:
    return -(-max(lengths) // block_size)


class PagedRun:
    """Computes `sequences` over the blocks of a runner's pool, which nothing else uses meanwhile."""

    def __init__(
        self, runner: ModelRunner, layers: Layers, sequences: Sequences, step_done: Callable[[], None]
    ) -> None:
        self._runner = runner
        self._layers = layers
        self._sequences = sequences
        self._step_done = step_done

    @torch.inference_mode()
    def run(self, way: Way) -> Outputs:
        """Return the outputs of every token. Blocks that were not written hold NaN."""
        lengths, pool = self._sequences.lengths, self._runner.pool
        pool.tensor.fill_(float("nan"))
        first, second = _tables(pool.num_blocks, len(lengths))
        tables = first
        order: list[Piece] = []
        logits: list[Tensor] = []
        with watched(self._layers) as added:
            for number, pieces in enumerate(way.steps):
                if number == way.moves_at:
                    pool.tensor[second.view(-1)] = pool.tensor[first.view(-1)]
                    pool.tensor[first.view(-1)] = float("nan")
                    tables = second
                logits.append(self._runner.forward(self._batch(pieces, tables)).cpu())
                order += pieces
                self._step_done()
        places = torch.cat(list(self._places(order))).argsort()
        # A deterministic model's steps are padded on a CPU.
        sizes = [len(rows) for rows in logits]
        rows = {
            name: torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
            for name, parts in added.items()
        }
        return {name: found[places] for name, found in (rows | {LOGITS: torch.cat(logits)}).items()}

    def _places(self, pieces: Sequence[Piece]) -> Iterator[Tensor]:
        """Yield where the tokens of each piece are among those of all sequences."""
        lengths = self._sequences.lengths
        for piece in pieces:
            begin = sum(lengths[: piece.sequence])
            yield torch.arange(begin + piece.begin, begin + piece.end)

    def _batch(self, pieces: Sequence[Piece], tables: Tensor) -> StepBatch:
        """Return the batch of a step, with logits of every token."""
        device = self._runner.model.device
        tokens, positions = (
            torch.cat([rows[piece.sequence][piece.begin : piece.end] for piece in pieces])
            for rows in (self._sequences.token_ids, self._sequences.positions)
        )
        chunks = [(piece.begin, piece.end - piece.begin) for piece in pieces]
        own = tables[[piece.sequence for piece in pieces]]
        block_size = self._runner.pool.layout.block_size
        batch = StepBatch.of_chunks(chunks, own, block_size, lambda _: tokens, device)
        rows = torch.arange(len(tokens), device=device)
        return replace(batch, positions=positions.to(device), logit_rows=rows)


def _tables(num_blocks: int, num_sequences: int) -> tuple[Tensor, Tensor]:
    """Return two block tables [sequences, blocks] without a block in common, in no order."""
    blocks = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(2))
    first, second = blocks.view(2, num_sequences, -1)
    return first, second
