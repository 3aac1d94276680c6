"""The tokens that a proof computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from engine.model.model import ModelFacts

LENGTHS = (100, 37, 9)
"""Lengths of the sequences from position 0, if the context is long enough: over several blocks, over one or
two, and less than one."""
NUM_FAR = 24
"""Length of a last sequence, whose positions are the last ones of the context. What depends on the position,
such as the scale of queries in some models, differs there."""
MAX_WINDOW = 512
"""The first sequence is longer than the sliding window, up to such a window."""
PAST_WINDOW = 40


@dataclass(frozen=True, slots=True)
class Sequences:
    """Tokens and positions of each sequence, [length] int64."""

    token_ids: tuple[Tensor, ...]
    positions: tuple[Tensor, ...]

    @property
    def lengths(self) -> list[int]:
        return [len(tokens) for tokens in self.token_ids]

    def split(self, rows: Tensor) -> list[Tensor]:
        """Split rows of all sequences [total, ...] into those of each."""
        ends = list(accumulate(self.lengths))
        return [rows[end - length : end] for end, length in zip(ends, self.lengths, strict=True)]


def make_sequences(facts: ModelFacts, windows: Sequence[int | None]) -> Sequences:
    """Draw sequences for a model whose layers have these windows; the same ones in each call."""
    generator = torch.Generator().manual_seed(1)
    proven = [window + PAST_WINDOW for window in windows if window is not None and window <= MAX_WINDOW]
    first, *others = LENGTHS
    lengths = [min(length, facts.max_context) for length in (max(first, *proven, 0), *others, NUM_FAR)]
    starts = [0] * len(LENGTHS) + [facts.max_context - lengths[-1]]
    return Sequences(
        tuple(torch.randint(facts.vocab_size, (length,), generator=generator) for length in lengths),
        tuple(torch.arange(start, start + length) for start, length in zip(starts, lengths, strict=True)),
    )
