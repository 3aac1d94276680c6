"""A trace in a few figures: the number of requests, the duration, and the promises."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from workloads.trace import TraceRequest


@dataclass(frozen=True, slots=True)
class Limits:
    """One kind of promise, over the requests that ask for it; milliseconds."""

    requests: int
    least_ms: int
    median_ms: float
    most_ms: int


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """The figures of a trace. `duration_s` is from the first to the last arrival; a promise without requests
    is None.
    """

    requests: int
    duration_s: float
    ttft: Limits | None
    tpot: Limits | None
    itl: Limits | None


def summarise(trace: Sequence[TraceRequest]) -> TraceSummary:
    """Return the figures of a trace with at least one request."""
    return TraceSummary(
        requests=len(trace),
        duration_s=trace[-1].at_s - trace[0].at_s,
        ttft=_asked([request.ttft_ms for request in trace]),
        tpot=_asked([request.tpot_ms for request in trace]),
        itl=_asked([request.itl_ms for request in trace]),
    )


def _asked(promises: Sequence[int | None]) -> Limits | None:
    known = [ms for ms in promises if ms is not None]
    return Limits(len(known), min(known), statistics.median(known), max(known)) if known else None
