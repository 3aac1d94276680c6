"""One comparison of a kernel with its reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Case:
    """A comparison of a kernel with its reference; `run` returns the output and the expected output."""

    op: str
    what: str
    run: Callable[[], tuple[Tensor, Tensor]]
