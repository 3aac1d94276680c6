"""A fleet's recordings: where they are stored, and their requests as a trace and steps with their times.

The recording's clock is the router's monotonic one, which on the same host is the load generator's too.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

from router.core.model.actions import Outcome, RequestEnded, TellFinished
from router.core.model.events import Arrived, Event, StepReported, WorkerJoined
from router.replay.replay import Decided, RecordingError, read, replay
from router.request import Request
from scheduling.cost_model import CostModel, StepShape
from sim.reporting.results import Results, StepSample
from sim.workloads.formats.baton import dump
from sim.workloads.trace import TraceRequest

TRACE_SUFFIX = ".trace.jsonl"
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


def events(path: Path) -> Iterator[tuple[float, Event]]:
    """Yield a recording's events with their times."""
    with path.open(encoding="ascii") as lines:
        for recorded in read(lines)[1]:
            yield recorded.now, recorded.event


def decided_again(path: Path) -> Iterator[Decided]:
    """Yield a recording's events, decided by a fresh core."""
    with path.open(encoding="ascii") as lines:
        yield from replay(lines)


def timed_steps(path: Path) -> Iterator[TimedStep]:
    """Yield the steps in the order of their reports."""
    reported: dict[str, float] = {}
    for now, event in events(path):
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
    models: dict[str, CostModel] = {}
    for _, event in events(path):
        if isinstance(event, WorkerJoined):
            models[event.facts.worker_id] = event.cost
        elif isinstance(event, StepReported) and event.cost is not None:
            models[event.worker_key.rpartition(":")[0]] = event.cost
    return models


def trace(path: Path, window: Window = Window()) -> tuple[float, tuple[TraceRequest, ...]]:
    """Return when the first request of the window came, and its requests with the lengths that they reached.

    A request that was refused, or did not end in the recording, counts with the length it asked for. Raise
    `ValueError` if a replay decides differently from the router: its lengths would be those of another run.
    """
    arrived: dict[tuple[str, str], Request] = {}
    lengths: dict[tuple[str, str], int] = {}
    for decided in decided_again(path):
        if not decided.identical:
            raise ValueError(f"{path}: line {decided.recorded.line} is decided differently now")
        event = decided.recorded.event
        if isinstance(event, Arrived) and event.request.session == 0 and decided.recorded.now in window:
            request = event.request
            arrived.setdefault((request.tenant, request.request_id), request)
        for action in decided.actions:
            if isinstance(action, RequestEnded):
                tenant, request_id, _ = action.request_key.split("/")
                lengths[unquote(tenant), unquote(request_id)] = action.outcome.output_tokens
    ordered = sorted(arrived.items(), key=lambda item: item[1].received_at)
    start = ordered[0][1].received_at if ordered else 0.0
    return start, tuple(_request(start, request, lengths.get(name)) for name, request in ordered)


def delivered(path: Path, window: Window = Window()) -> tuple[Outcome, ...]:
    """Return what became of each request that arrived in the window and has tokens, by its arrival."""
    outcomes = [
        action.outcome
        for decided in decided_again(path)
        for action in decided.actions
        if isinstance(action, TellFinished) and action.outcome.has_tokens
    ]
    outcomes.sort(key=lambda outcome: outcome.marks.received_at)
    return tuple(outcome for outcome in outcomes if outcome.marks.received_at in window)


def _request(start: float, request: Request, length: int | None) -> TraceRequest:
    slo, stop = request.slo, request.stop
    return TraceRequest(
        at_s=request.received_at - start,
        prompt_tokens=len(request.prompt_token_ids),
        output_tokens=length or stop.max_tokens,
        slo_class=slo.slo_class.name.lower(),
        ttft_ms=slo.ttft_ms,
        tpot_ms=slo.tpot_ms,
        itl_ms=slo.itl_ms,
        tenant=request.tenant,
        max_tokens=None if stop.ignore_eos else stop.max_tokens,
    )


@contextlib.contextmanager
def record_folder(args: argparse.Namespace) -> Iterator[Path | None]:
    """Return where routers record; plots need their steps even if the recordings are not kept."""
    if args.record:
        args.record.mkdir(parents=True, exist_ok=True)
        yield args.record
    elif (args.report or args.json) and not args.address:
        with tempfile.TemporaryDirectory(prefix="baton-bench-") as folder:
            yield Path(folder)
    else:
        yield None


def with_steps(results: Results, recordings: Mapping[str, Path]) -> Results:
    """Add the recorded steps to the first seed's runs, which is enough for plots."""
    first = min(run.seed for run in results.runs)
    steps = {arm: list(_steps_of(arm, path)) for arm, path in recordings.items()}
    runs = [
        replace(run, steps=step_samples(steps.get(run.arm, ()), Window(run.began_s, run.ended_s)))
        if run.seed == first
        else run
        for run in results.runs
    ]
    return replace(results, runs=tuple(runs))


def write_traces(recordings: Mapping[str, Path], began_s: float) -> None:
    """Write the requests from `began_s` on beside each recording, as `baton simulate --trace` reads them."""
    for arm, path in recordings.items():
        try:
            _, requests = trace(path, Window(start=began_s))
        except ValueError as error:
            print(f"{arm}: no trace of {path}: {error}", file=sys.stderr)
            continue
        path.with_suffix(TRACE_SUFFIX).write_text("".join(dump(requests)), encoding="utf-8")


def _steps_of(arm: str, path: Path) -> Iterator[TimedStep]:
    """Yield the steps up to a break, if there is one: a killed router's recording has no end."""
    try:
        yield from timed_steps(path)
    except RecordingError as error:
        print(f"{arm}: {path}: {error}", file=sys.stderr)
