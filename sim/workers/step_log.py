"""Every step of a simulated worker, for who wants to look at them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """Times on the simulation's clock, in seconds."""

    end_s: float
    step_s: float
    num_decodes: int
    chunk_tokens: int


@dataclass(slots=True)
class StepLog:
    """Stretches of steps alike but for their ends, as they were taken."""

    _stretches: list[tuple[float, Sequence[float] | NDArray[np.float64], int, int]] = field(
        default_factory=list
    )

    def add(
        self, began: float, ends: Sequence[float] | NDArray[np.float64], num_decodes: int, chunk_tokens: int
    ) -> None:
        """Steps one after the other, the first from `began` on."""
        self._stretches.append((began, ends, num_decodes, chunk_tokens))

    def steps(self) -> Iterator[LoggedStep]:
        """One by one."""
        for began, ends, num_decodes, chunk_tokens in self._stretches:
            begin = began
            for end in map(float, ends):
                yield LoggedStep(end, end - begin, num_decodes, chunk_tokens)
                begin = end
