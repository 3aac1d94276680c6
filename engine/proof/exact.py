"""Holds a model of bfloat16 in float32 for a while, so that faults far below bfloat16's rounding show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn


def bytes_added(module: nn.Module) -> int:
    """Return by how much a model grows in float32; 0 if nothing of it is in bfloat16."""
    return sum(tensor.nbytes for tensor in _rounded(module))


@contextmanager
def in_float32(module: nn.Module) -> Iterator[None]:
    """Hold all of a model's bfloat16 numbers in float32; they get the same bits back."""
    rounded = _rounded(module)
    for tensor in rounded:
        tensor.data = tensor.data.float()
    try:
        yield
    finally:
        for tensor in rounded:
            tensor.data = tensor.data.bfloat16()


def _rounded(module: nn.Module) -> list[Tensor]:
    tensors = chain(module.parameters(), module.buffers())
    return [tensor for tensor in tensors if tensor.dtype == torch.bfloat16]
