"""Draws traces to simulate from a workload."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sim.workloads.shapes import DEFAULT_CAPS, RequestShape, arrivals, shapes
from sim.workloads.trace import TraceRequest

SAMPLE = 2000
"""The number of requests that represent a workload for means and medians."""


@dataclass(frozen=True, slots=True)
class Promises:
    """The limits that every request asks for; milliseconds, None without a limit."""

    ttft_ms: int | None = None
    tpot_ms: int | None = None
    itl_ms: int | None = None


def sample(workload: str, scale: float) -> list[RequestShape]:
    """Return a sample of a workload's requests."""
    if workload not in DEFAULT_CAPS:
        raise ValueError(f"workload is {workload!r}; accepted: {', '.join(DEFAULT_CAPS)}")
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"scale is {scale}; accepted: a finite number above 0")
    return shapes(workload, SAMPLE, 0, scale)


def draw(
    workload: str,
    process: str,
    rate: float,
    duration_s: float,
    seed: int,
    promises: Promises,
    scale: float = 1.0,
) -> tuple[TraceRequest, ...]:
    """Draw a workload's requests for this duration; the same seed draws the same."""
    if not (math.isfinite(duration_s) and duration_s > 0):
        raise ValueError(f"duration_s is {duration_s}; accepted: a finite number above 0")
    times = _times(process, rate, duration_s, seed)
    lengths = shapes(workload, len(times), seed, scale)
    return tuple(trace_of(at_s, length, promises) for at_s, length in zip(times, lengths, strict=True))


def _times(process: str, rate: float, duration_s: float, seed: int) -> Sequence[float]:
    most = max(1, round(rate * duration_s))
    times: list[float] = []
    for at_s in arrivals(process, rate, seed):
        if at_s > duration_s or (process == "burst" and len(times) == most):
            return times
        times.append(at_s)
    return times


def trace_of(at_s: float, shape: RequestShape, promises: Promises) -> TraceRequest:
    """Return a request of this shape."""
    return TraceRequest(
        at_s,
        shape.prompt_tokens,
        shape.output_tokens,
        shape.slo_class,
        promises.ttft_ms,
        promises.tpot_ms,
        promises.itl_ms,
        shared_blocks=shape.shared_blocks,
        shared_block_tokens=shape.shared_block_tokens,
    )
