"""The grid of steps that are timed at start-up: sequences, contexts and chunks vary independently."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from scheduling.cost_model import StepShape

DECODE_COUNTS = (1, 4, 16, 64, 256)
DECODE_CONTEXTS = (32, 256, 1024)
CHUNK_TOKENS = (16, 64, 256, 1024)
LONG_CHUNK_TOKENS = 4096
"""Another one, where shorter chunks may all last as long as it takes to launch them."""
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


def grid(max_num_seqs: int, token_budget: int, max_context: int, *, has_floor: bool = False) -> list[Step]:
    """Return steps of decodes, of chunks and of both; contexts vary independently of counts and lengths.

    `has_floor` says that a step with a chunk has a least time, below which its length costs nothing.
    """
    counts = _up_to(DECODE_COUNTS, max_num_seqs)
    contexts = _up_to(DECODE_CONTEXTS, max_context)
    lengths = (*CHUNK_TOKENS, LONG_CHUNK_TOKENS) if has_floor else CHUNK_TOKENS
    chunks = list(_chunks(_up_to(lengths, min(token_budget, max_context)), max_context))
    decodes = [Step(count, context) for count in counts for context in contexts]
    mixed = [Step(count, contexts[0], chunk) for count in counts[1:3] for chunk in chunks[:: len(counts)]]
    return decodes + [Step(0, 0, chunk) for chunk in chunks] + mixed


def _up_to(values: Sequence[int], most: int) -> list[int]:
    """Return the `values` below `most`, and `most` itself if some are above it."""
    below = [value for value in values if value < most]
    return [*below, most] if len(below) < len(values) else below


def _chunks(lengths: Iterable[int], max_context: int) -> Iterator[tuple[int, int]]:
    for tokens in lengths:
        for before in CHUNK_CONTEXTS:
            if before + tokens <= max_context:
                yield before, tokens
