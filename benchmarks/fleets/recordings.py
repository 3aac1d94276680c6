"""The event logs of a measured fleet's routers: where they lie, and what is made of them."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.fleets.recorded import TimedStep, Window, step_samples, timed_steps, trace
from reporting.results import Results
from router.replay.replay import RecordingError
from workloads.trace import dump

TRACE_SUFFIX = ".trace.jsonl"


@contextlib.contextmanager
def record_folder(args: argparse.Namespace) -> Iterator[Path | None]:
    """Where routers record; plots need their steps even when nobody wants to keep the recordings."""
    if args.record:
        args.record.mkdir(parents=True, exist_ok=True)
        yield args.record
    elif (args.report or args.json) and not args.address:
        with tempfile.TemporaryDirectory(prefix="baton-bench-") as folder:
            yield Path(folder)
    else:
        yield None


def with_steps(results: Results, recordings: Mapping[str, Path]) -> Results:
    """The first seed's runs with the steps that were recorded meanwhile: enough to look at."""
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
    """Beside each recording what was asked from `began_s` on, as `baton simulate --trace` reads it."""
    for arm, path in recordings.items():
        try:
            requests = trace(path, Window(start=began_s))
        except ValueError as error:
            print(f"{arm}: no trace of {path}: {error}", file=sys.stderr)
            continue
        path.with_suffix(TRACE_SUFFIX).write_text("".join(dump(requests)), encoding="utf-8")


def _steps_of(arm: str, path: Path) -> Iterator[TimedStep]:
    """Those before a break where there is one: a router that was killed leaves no end."""
    try:
        yield from timed_steps(path)
    except RecordingError as error:
        print(f"{arm}: {path}: {error}", file=sys.stderr)
