"""A comparison of a kernel with its reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Comparison = Callable[[], tuple[Tensor, Tensor]]
"""Returns the output and the expected output."""


@dataclass(frozen=True, slots=True)
class Case:
    """A comparison with its inputs."""

    op: str
    what: str
    run: Comparison
