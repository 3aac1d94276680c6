"""The result of a simulation. Times are seconds; those of a request count from its receipt by a router."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.bubbles import PipelineTimes
from sim.reporting.results import StepSample
from sim.workloads.trace import TraceRequest

WARMUP_SHARE = 0.1


class End(enum.Enum):
    """How a request ended."""

    FINISHED = "finished"
    REFUSED = "refused"
    FAILED = "failed"
    UNFINISHED = "unfinished"
    """It was still running or waiting when the simulation stopped."""


@dataclass(frozen=True, slots=True)
class RequestResult:
    """A request, in the order of the trace."""

    asked: TraceRequest
    end: End
    ttft_s: float | None = None
    tpot_s: float | None = None
    """None with fewer than two tokens."""
    e2e_s: float | None = None
    queue_s: float | None = None
    """Seconds until it was sent to a worker."""
    max_gap_s: float | None = None
    p99_gap_s: float | None = None
    promised_ttft_s: float | None = None
    """The prediction when it was accepted."""
    at_risk: bool = False
    cached_tokens: int = 0
    attempts: int = 0
    error: str = ""
    start_s: float = 0.0
    """When its program began; without one, when it came."""
    refused_for: str = ""
    """Why it was refused: a `scheduling.admission.admission.Cause`, or the name of the error."""

    @property
    def met_ttft(self) -> bool:
        wanted_ms = self.asked.ttft_ms
        return self.ttft_s is not None and (wanted_ms is None or self.ttft_s * 1000 <= wanted_ms)

    @property
    def met_pace(self) -> bool:
        """True if TPOT (the mean) and ITL (the 99 % quantile of its gaps) were met."""
        asked = self.asked
        in_tpot = asked.tpot_ms is None or self.tpot_s is None or self.tpot_s * 1000 <= asked.tpot_ms
        return in_tpot and self.met_itl

    @property
    def met_itl(self) -> bool:
        wanted_ms, gap_s = self.asked.itl_ms, self.p99_gap_s
        return wanted_ms is None or gap_s is None or gap_s * 1000 <= wanted_ms

    @property
    def good(self) -> bool:
        """True if it finished and met all that it asked for."""
        return self.end is End.FINISHED and self.met_ttft and self.met_pace


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """The activity of a worker."""

    name: str
    role: str
    num_steps: int
    num_mixed_steps: int
    busy_s: float
    chunk_tokens: int
    decode_tokens: int
    preemptions: int
    recomputed_tokens: int
    kv_allocated: float
    """Mean share of the pool that was allocated or promised, over its reports."""
    kv_held: float
    """Mean share of the allocated slots that held a token."""
    step_ends: NDArray[np.float64]
    """When its decode steps ended, on the simulation's clock."""
    step_sizes: NDArray[np.int32]
    """Sequences in each of them."""
    pipeline: PipelineTimes | None = None
    """None with one stage."""
    steps: tuple[StepSample, ...] = ()
    """All steps, if the specification keeps them."""


@dataclass(frozen=True, slots=True)
class SimResult:
    """The whole result. The same specification gives the same result."""

    requests: tuple[RequestResult, ...]
    workers: tuple[WorkerResult, ...]
    ended_s: float
    num_events: int
    leftovers: Mapping[str, int]
    """Resources that routers and store still held at the end; empty if nothing was lost."""

    @property
    def judged(self) -> tuple[RequestResult, ...]:
        """The requests that figures are about: all but the first ones, which meet an empty fleet."""
        return self.requests[int(len(self.requests) * WARMUP_SHARE) :]
