"""The event logs of a measured fleet's routers: where they are stored, and what is made of them."""

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
            requests = trace(path, Window(start=began_s))
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
