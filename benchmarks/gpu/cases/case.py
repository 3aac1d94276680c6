"""One comparison of a kernel with its reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Case:
    """`run` answers what the op made and what it should have made."""

    op: str
    what: str
    run: Callable[[], tuple[Tensor, Tensor]]
