"""The part of a model that one process of a group computes, and how its results meet those of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kernels.native.group import Group


@dataclass(frozen=True, slots=True)
class Part:
    """Part `rank` of `size` equal ones."""

    rank: int
    size: int

    def share(self, length: int) -> slice:
        """Return this part's share of a dimension, whose length `size` divides."""
        count = length // self.size
        assert count * self.size == length, f"{length} in {self.size} parts"
        return slice(self.rank * count, (self.rank + 1) * count)

    def words(self, vocab_size: int) -> slice:
        """Return the token ids of this part. Parts may differ by one token."""
        return slice(self.rank * vocab_size // self.size, (self.rank + 1) * vocab_size // self.size)

    def take(self, tensor: Tensor, dim: int, pieces: Sequence[int] | None = None) -> Tensor:
        """Return a copy of this part's share of a dimension: of the whole, or of each of its pieces."""
        taken, begin = [], 0
        for length in pieces or (tensor.shape[dim],):
            share = self.share(length)
            taken.append(tensor.narrow(dim, begin + share.start, share.stop - share.start))
            begin += length
        assert begin == tensor.shape[dim], f"pieces of {begin}, of {tensor.shape[dim]}"
        return torch.cat(taken, dim)


class Collectives(Protocol):
    """The steps that the processes of a group take together, each of them in the same order."""

    @property
    def part(self) -> Part: ...

    @property
    def native(self) -> Group | None:
        """The memory of this group for native ops; None where none are built."""

    def sum(self, own: Tensor) -> Tensor:
        """Return the sum of what all parts pass, the same bits in each; all have the same shape."""

    def gather_logits(self, own: Tensor) -> Tensor:
        """Put the logits [1, R, words] of all parts side by side.

        Return [1, R, vocab_size] in the leader, valid until the next step, and no rows in the others.
        """
