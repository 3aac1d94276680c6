"""Read a run from a router's recording: its requests as a trace, and its steps with their times.

The recording's clock is the router's monotonic one, which on the same host is the load generator's too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from reporting.results import StepSample
from router.core.actions import RequestEnded
from router.core.events import Arrived, StepReported, WorkerJoined
from router.replay.replay import read, replay
from scheduling.cost.cost_model import CostModel, StepShape
from workloads.trace import TraceRequest

MOMENT_S = 1e-6


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step of a worker, reported at `at_s` on the recording's clock."""

    at_s: float
    worker_id: str
    shape: StepShape
    step_s: float
    turn_s: float = 0.0
    """Seconds between the report of the previous step and this step; 0 if the worker was idle meanwhile. It
    is negative if that report was the slower one."""

    @property
    def lasted_s(self) -> float:
        """Seconds from report to report: pauses of a host fall between steps as well, and then several
        reports come at once.
        """
        return max(MOMENT_S, self.step_s + self.turn_s)


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a recording, in seconds of its clock."""

    start: float = -math.inf
    end: float = math.inf

    def __contains__(self, at: float) -> bool:
        return self.start <= at < self.end


EVERYTHING = Window()


def timed_steps(path: Path) -> Iterator[TimedStep]:
    """Yield the steps in the order of their reports."""
    reported: dict[str, float] = {}
    with path.open(encoding="ascii") as lines:
        for recorded in read(lines)[1]:
            event, now = recorded.event, recorded.now
            if not isinstance(event, StepReported):
                continue
            before = reported.pop(event.worker_key, None)
            if event.load.running or event.load.waiting:
                reported[event.worker_key] = now
            if event.shape is not None and event.step_s > 0:
                turn_s = 0.0 if before is None else now - before - event.step_s
                worker_id = event.worker_key.rpartition(":")[0]
                yield TimedStep(now, worker_id, event.shape, event.step_s, turn_s)


def step_samples(steps: Iterable[TimedStep], window: Window) -> tuple[StepSample, ...]:
    """Return the steps in a window for plots, on the clock of its start."""
    return tuple(
        StepSample(
            at_s=round(step.at_s - window.start, 6),
            step_s=round(step.step_s, 7),
            worker=step.worker_id,
            num_decodes=step.shape.num_decodes,
            prefill_tokens=step.shape.num_tokens - step.shape.num_decodes,
        )
        for step in steps
        if step.at_s in window
    )


def costs(path: Path) -> dict[str, CostModel]:
    """Return each worker's last published cost model, by worker id."""
    found: dict[str, CostModel] = {}
    with path.open(encoding="ascii") as lines:
        for recorded in read(lines)[1]:
            event = recorded.event
            if isinstance(event, WorkerJoined):
                found[event.facts.worker_id] = event.cost
            elif isinstance(event, StepReported) and event.cost is not None:
                found[event.worker_key.rpartition(":")[0]] = event.cost
    return found


def trace(path: Path, window: Window = EVERYTHING) -> tuple[TraceRequest, ...]:
    """Return the trace of `began_trace` without its start."""
    return began_trace(path, window)[1]


def began_trace(path: Path, window: Window) -> tuple[float, tuple[TraceRequest, ...]]:
    """Return when the first request of the window came, and its requests with the lengths that they reached.

    A request that was refused, or did not end in the recording, counts with the length it asked for. Raise
    `ValueError` if a replay decides differently from the router: its lengths would be those of another run.
    """
    arrived: dict[tuple[str, str], tuple[float, Arrived]] = {}
    lengths: dict[tuple[str, str], int] = {}
    with path.open(encoding="ascii") as lines:
        for decided in replay(lines):
            if not decided.identical:
                raise ValueError(f"{path}: line {decided.recorded.line} is decided differently now")
            event, now = decided.recorded.event, decided.recorded.now
            if isinstance(event, Arrived) and event.session == 0 and now in window:
                arrived.setdefault((event.tenant, event.request_id), (event.received_at, event))
            for action in decided.actions:
                if isinstance(action, RequestEnded):
                    tenant, request_id, _ = action.request_key.split("/")
                    lengths[unquote(tenant), unquote(request_id)] = action.outcome.output_tokens
    ordered = sorted(arrived.items(), key=lambda item: item[1][0])
    start = ordered[0][1][0] if ordered else 0.0
    return start, tuple(_request(at - start, event, lengths.get(name)) for name, (at, event) in ordered)


def _request(at_s: float, event: Arrived, length: int | None) -> TraceRequest:
    slo, stop = event.slo, event.stop
    return TraceRequest(
        at_s=at_s,
        prompt_tokens=len(event.prompt_token_ids),
        output_tokens=length or stop.max_tokens,
        slo_class=slo.slo_class.name.lower(),
        ttft_ms=slo.ttft_ms,
        tpot_ms=slo.tpot_ms,
        itl_ms=slo.itl_ms,
        tenant=event.tenant,
        max_tokens=None if stop.ignore_eos else stop.max_tokens,
    )
