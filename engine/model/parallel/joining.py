"""Lets the results of a model's parts meet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from engine.model.fusion import NativeSequence, fused_place
from engine.model.parallel.cutting import Cuts
from engine.model.parallel.part import Collectives, Part


class Summed(nn.Module):
    """A module that was cut by inputs: its output is the sum of all parts'."""

    def __init__(self, inner: nn.Module, collectives: Collectives) -> None:
        super().__init__()
        self.inner = inner
        self._collectives = collectives

    def forward(self, *arguments: Any) -> Tensor:
        return self._collectives.sum(self.inner(*arguments))


class WholeNorm(nn.Module):
    """An RMS norm over the heads of all parts; in float32, as transformers computes it."""

    def __init__(self, norm: Any, size: int, collectives: Collectives) -> None:
        """`norm` has the weights of this part; `size` is the number of numbers in all parts."""
        super().__init__()
        self.norm = norm
        self._size = size
        self._collectives = collectives

    def forward(self, own: Tensor) -> Tensor:
        numbers = own.to(torch.float32)
        # In float64 the order of the parts hardly shows.
        squares = self._collectives.sum(numbers.pow(2).sum(-1, keepdim=True, dtype=torch.float64))
        scale = torch.rsqrt((squares / self._size).to(torch.float32) + self.norm.variance_epsilon)
        normed: Tensor = self.norm.weight * (numbers * scale)
        return normed.to(own.dtype)


class Embedding(nn.Module):
    """An embedding of which each part has the rows of its token ids."""

    def __init__(self, inner: nn.Module, vocab_size: int, collectives: Collectives) -> None:
        super().__init__()
        self.inner = inner
        self._words = collectives.part.words(vocab_size)
        self._collectives = collectives

    def forward(self, token_ids: Tensor) -> Tensor:
        """Embed [...] to [..., hidden_size], a new tensor."""
        words = self._words
        is_other = (token_ids < words.start) | (token_ids >= words.stop)
        rows = self.inner((token_ids - words.start).masked_fill_(is_other, 0))
        return self._collectives.sum(rows.masked_fill(is_other[..., None], 0))


class Head(nn.Module):
    """The layer that makes the logits, of which each part makes those of its token ids."""

    def __init__(self, inner: nn.Module, collectives: Collectives) -> None:
        super().__init__()
        self.inner = inner
        self._collectives = collectives

    def forward(self, hidden: Tensor) -> Tensor:
        """Return [1, R, vocab_size] for [1, R, hidden_size] in the leader, and no rows in the others."""
        return self._collectives.gather_logits(self.inner(hidden))


class Alone:
    """Collectives of a part that computes by itself: as much work as with the others, and wrong results."""

    native = None

    def __init__(self, part: Part, vocab_size: int) -> None:
        self.part = part
        self._vocab_size = vocab_size

    def sum(self, own: Tensor) -> Tensor:
        """Implements `Collectives`."""
        return own

    def gather_logits(self, own: Tensor) -> Tensor:
        """Implements `Collectives`."""
        return own.new_zeros((*own.shape[:-1], self._vocab_size))


@contextmanager
def alone(module: Any, cuts: Cuts | None) -> Iterator[None]:
    """Let a part that is not joined, and has no native layers, compute without the others for a while.

    Do nothing to a whole model, whose `cuts` are None.
    """
    if cuts is None:
        yield
        return
    replaced: dict[str, nn.Module] = {}
    for name in _joined_places(module, cuts):
        replaced[name] = module.get_submodule(name)
    join(module, cuts, Alone(cuts.part, cuts.vocab_size))
    try:
        yield
    finally:
        for name, stock in replaced.items():
            module.set_submodule(name, stock)


def _joined_places(module: Any, cuts: Cuts) -> list[str]:
    """Return the paths of all modules that `join` replaces."""
    summed = [fused_place(module, name, {})[0] for name in cuts.summed]
    return [*summed, *cuts.norms, cuts.embedding, cuts.head]


def join(module: Any, cuts: Cuts, collectives: Collectives) -> None:
    """Make a cut model, which may have been fused since, a part of the whole, in place."""
    layers = getattr(getattr(module, "model", None), "layers", None)
    if isinstance(layers, NativeSequence):
        assert collectives.native is not None, "the layers are native"
        layers.join(collectives.native)
    else:
        for name in cuts.summed:
            place, _ = fused_place(module, name, {})
            module.set_submodule(place, Summed(module.get_submodule(place), collectives))
    for name, size in cuts.norms.items():
        module.set_submodule(name, WholeNorm(module.get_submodule(name), size, collectives))
    embedding, head = module.get_submodule(cuts.embedding), module.get_submodule(cuts.head)
    module.set_submodule(cuts.embedding, Embedding(embedding, cuts.vocab_size, collectives))
    module.set_submodule(cuts.head, Head(head, collectives))
