"""A step from its launch until its tokens are processed.

A launched step runs by itself on a GPU, so the next one can be launched behind it before the host knows what
it drew. What does not depend on its tokens (positions, blocks, rows that join, outputs that are full) is done
at its launch; what does (text, ends, due times, the prefix cache, the report) once it is over.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from engine.core.step import Step
from engine.sampling.drawn import Drawn
from engine.sampling.prompt_logprobs import TakenRows


class StepMark(Protocol):
    """Times one step on the device; made when the step may begin."""

    def end(self) -> None:
        """All of the step is launched."""
        ...

    def wait(self) -> None:
        """Return when the step is over; raise the error that the device reports."""
        ...

    def seconds(self) -> float:
        """Return how long the step took, once it is over."""
        ...


class HostMark:
    """For a device whose launches return when they are done: the host's time, with planning."""

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
        # A waiting thread sleeps; by default it would spin, and take a core from the other threads.
        self._end = cuda.Event(enable_timing=True, blocking=True)
        self._begin.record()

    def end(self) -> None:
        self._end.record()

    def wait(self) -> None:
        self._end.synchronize()

    def seconds(self) -> float:
        return float(self._begin.elapsed_time(self._end)) / 1000


@dataclass(slots=True, eq=False)
class Flight:
    """One launched step: what the device computes, beside what `step` says of it."""

    step: Step
    mark: StepMark
    over_at_s: float
    """When it is expected to be over, on the loop's clock."""
    prompt_rows: list[TakenRows] = field(default_factory=list)
    """Log-probabilities of prompt tokens that it computes."""
    drawn: Drawn | None = None
    """None where no row got a token."""
