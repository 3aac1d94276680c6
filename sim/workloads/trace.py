"""The requests of a trace: as they came, the part of them that is played, and their figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sim.workloads.shapes import RequestShape


@dataclass(frozen=True, slots=True)
class Turn:
    """A call's place in a program: which comes before it, and by when all of the program has to be over."""

    program: int
    deadline_s: float
    """For the whole program, from its first call on."""
    before: int | None = None
    """The place in the trace of the call before it; None for the first."""
    think_s: float = 0.0
    """From the end of the call before it."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A request as it came, and the length of its output. Times are seconds from the start of the trace."""

    at_s: float
    """When it comes. For a later call of a program, which comes once the call before it has ended, when the
    program begins."""
    prompt_tokens: int
    output_tokens: int
    slo_class: str = "standard"
    ttft_ms: int | None = None
    tpot_ms: int | None = None
    itl_ms: int | None = None
    tenant: str = ""
    shared_blocks: tuple[int, ...] = ()
    """Places in the pool of shared prefix blocks that the prompt begins with; it may end in the last one."""
    shared_block_tokens: int = 0
    """Tokens of each shared block."""
    max_tokens: int | None = None
    """The most tokens that it asked for; None if the output always has the length asked for."""
    turn: Turn | None = None
    """Its place in a program; None if it is a call of none."""

    @property
    def shape(self) -> RequestShape:
        """The lengths, and what of the prompt is shared."""
        return RequestShape(
            self.prompt_tokens,
            self.output_tokens,
            self.slo_class,
            self.shared_blocks,
            self.shared_block_tokens,
        )

    @property
    def most_tokens(self) -> int:
        """The length of its prompt and of the longest output that it asked for."""
        return self.prompt_tokens + (self.max_tokens or self.output_tokens)


class TraceError(ValueError):
    """A line that cannot be used; `line` counts from 1."""

    def __init__(self, line: int, field: str, value: object, accepted: str) -> None:
        super().__init__(f"line {line}: {field} is {value!r}; accepted: {accepted}")
        self.line = line
        self.field = field


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a trace that is played, and how: its seconds are those of the trace."""

    from_s: float = 0.0
    for_s: float = math.inf
    speed: float = 1.0
    """How many seconds of the trace pass in one second."""
    scale: float = 1.0
    """Multiplies all lengths."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The requests of a part of a trace that are played, and how many are left out."""

    requests: tuple[TraceRequest, ...]
    num_empty: int
    """Requests without a prompt or without an output: their service failed them."""
    num_too_long: int = 0
    """Requests that the model's context cannot hold."""


def excerpt(requests: Iterable[TraceRequest], part: Part) -> Excerpt:
    """Take a part of a trace. Nothing behind its end is read, and nothing outside of it is kept."""
    played: list[TraceRequest] = []
    num_empty = 0
    for request in _within(requests, part):
        if request.prompt_tokens and request.output_tokens:
            played.append(_played(request, part))
        else:
            num_empty += 1
    return Excerpt(tuple(played), num_empty)


def fitting(whole: Excerpt, max_context: int) -> Excerpt:
    """Leave out the requests that the context of a model cannot hold."""
    fit = tuple(request for request in whole.requests if request.most_tokens <= max_context)
    return replace(whole, requests=fit, num_too_long=len(whole.requests) - len(fit))


def _within(requests: Iterable[TraceRequest], part: Part) -> Iterator[TraceRequest]:
    for request in requests:
        if request.at_s >= part.from_s + part.for_s:
            return
        if request.at_s >= part.from_s:
            yield request


def _played(request: TraceRequest, part: Part) -> TraceRequest:
    prompt, block = _scaled(request.prompt_tokens, part), request.shared_block_tokens
    block = _scaled(block, part) if block else 0
    return replace(
        request,
        at_s=(request.at_s - part.from_s) / part.speed,
        prompt_tokens=prompt,
        output_tokens=_scaled(request.output_tokens, part),
        max_tokens=None if request.max_tokens is None else _scaled(request.max_tokens, part),
        # Rounded up, blocks may be longer than their prompt.
        shared_blocks=request.shared_blocks[: math.ceil(prompt / block)] if block else (),
        shared_block_tokens=block,
    )


def _scaled(tokens: int, part: Part) -> int:
    return max(1, round(tokens * part.scale))


def rate_per_s(trace: Sequence[TraceRequest]) -> float:
    """Return the mean rate of a trace with at least one request."""
    span_s = trace[-1].at_s - trace[0].at_s
    return len(trace) / span_s if span_s > 0 else float(len(trace))


def summarise(trace: Sequence[TraceRequest]) -> dict[str, Any]:
    """Return the figures of a trace with at least one request, which JSON can hold.

    `duration_s` is from the first to the last arrival; a promise that nobody asks for is None.
    """
    return {
        "requests": len(trace),
        "duration_s": trace[-1].at_s - trace[0].at_s,
        "ttft": _limits([request.ttft_ms for request in trace]),
        "tpot": _limits([request.tpot_ms for request in trace]),
        "itl": _limits([request.itl_ms for request in trace]),
    }


def _limits(promises: Iterable[int | None]) -> dict[str, float] | None:
    limits = [ms for ms in promises if ms is not None]
    if not limits:
        return None
    return {
        "requests": len(limits),
        "least_ms": min(limits),
        "median_ms": statistics.median(limits),
        "most_ms": max(limits),
    }
