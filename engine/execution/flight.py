"""A step from its launch until it is in the books: what is known of it before its tokens are.

A launched step runs by itself on a GPU, so the next one can be launched behind it before anybody knows what
it drew. What does not depend on its tokens (positions, blocks, who joins, whose output is full) is done at
its launch; what does (text, ends, due times, the prefix cache, the report) once it is over.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from engine.core.sequence import Sequence as Choice
from engine.core.sequence import SequenceGroup
from engine.sampling.prompt_logprobs import TakenRows
from engine.sampling.sampler import Drawn
from scheduling.cost.cost_model import StepShape


class Mark(Protocol):
    """When one step begins and ends on the device; made when it may begin."""

    def end(self) -> None:
        """All of the step is launched."""
        ...

    def wait(self) -> None:
        """Returns when the step is over; raises what the device says of it."""
        ...

    def seconds(self) -> float:
        """How long it took, once it is over."""
        ...


class HostMark:
    """For a device whose launches return when they are done: the host's time, planning and books included."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()

    def end(self) -> None:
        """The step is over as well."""

    def wait(self) -> None:
        """It is over."""

    def seconds(self) -> float:
        return time.perf_counter() - self._began_s


class CudaMark:
    """Events around a step in the current stream.

    The first is reached when the step before is over, so the host's part counts only where the device waited
    for it.
    """

    def __init__(self) -> None:
        cuda: Any = torch.cuda  # untyped
        self._begin = cuda.Event(enable_timing=True)
        # Whoever waits sleeps; by default it would spin, and take a core from the other threads.
        self._end = cuda.Event(enable_timing=True, blocking=True)
        self._begin.record()

    def end(self) -> None:
        self._end.record()

    def wait(self) -> None:
        self._end.synchronize()

    def seconds(self) -> float:
        return float(self._begin.elapsed_time(self._end)) / 1000


def _no_rows() -> NDArray[np.int64]:
    return np.empty(0, dtype=np.int64)


@dataclass(slots=True, eq=False)
class Flight:
    """One launched step. Its rows, whose choices may have moved or ended since, are as they were then."""

    mark: Mark
    shape: StepShape
    chunks: list[SequenceGroup]
    """Of each chunk."""
    over_at_s: float
    """When it is expected to be over, on the loop's clock."""
    num_recomputed: int = 0
    prompt_rows: list[TakenRows] = field(default_factory=list)
    """Log-probabilities of prompt tokens that it computes."""
    prefilled: list[SequenceGroup] = field(default_factory=list)
    """Whose prompt it completes, and draws the first tokens of."""
    choices: list[Choice] = field(default_factory=list)
    """Of each row that got a token."""
    first_row: int = 0
    """Of the sampling table, that the first of `choices` had."""
    handles: list[int] = field(default_factory=list)
    choice_indexes: list[int] = field(default_factory=list)
    token_indexes: list[int] = field(default_factory=list)
    """Of each new token in its output."""
    positions: NDArray[np.int64] = field(default_factory=_no_rows)
    """Of the tokens whose KV it writes for these rows."""
    num_logprobs: NDArray[np.int64] = field(default_factory=_no_rows)
    """By row of the sampling table."""
    drawn: Drawn | None = None
    """None where nobody got a token."""
    num_last: int = 0
    """Choices that have left the batch at its launch, since they get their last token."""
    held: list[int] = field(default_factory=list)
    """Blocks that nobody needs any more and that it may still write to: given back when it is over."""

    @property
    def groups(self) -> set[SequenceGroup]:
        """All that it computes for."""
        return {*self.chunks, *(choice.group for choice in self.choices)}
