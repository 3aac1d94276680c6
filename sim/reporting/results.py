"""The results of a measurement: every run, as the JSON that tables and plots are made from."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from sim.reporting.quantiles import Quantiles

KIND = "baton bench"
HELD_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a run, live or simulated. Times are seconds, rates per second, shares of 1."""

    requests: int
    completed: int
    refused: int
    failed: int
    duration_s: float
    offered_per_s: float
    completed_per_s: float
    goodput_per_s: float | None
    """Missing, like the next, where no request states an SLO."""
    good_share: float | None
    """The share of all requests sent."""
    accepted_that_kept_ttft: float | None
    """The share of accepted requests with a TTFT limit that met it."""
    output_tokens_per_s: float
    total_tokens_per_s: float
    ttft: Quantiles | None
    itl: Quantiles | None
    tpot: Quantiles | None
    e2e: Quantiles | None
    refusal: Quantiles | None
    """Seconds until a refusal came."""
    kv_utilisation: float | None = None
    router_cpu_us_per_token: float | None = None
    busy_share: float | None = None
    """The share of the workers' time in which they computed."""
    kv_allocated: float | None = None
    """The share of the decode workers' pools that is allocated or promised."""


@dataclass(frozen=True, slots=True)
class StepSample:
    """A step of a worker; `at_s` is the time from the run's start to the step's end."""

    at_s: float
    step_s: float
    worker: str
    num_decodes: int
    prefill_tokens: int


@dataclass(frozen=True, slots=True)
class Run:
    """An arm at a rate with a seed; times in seconds, one per finished request."""

    arm: str
    rate_per_s: float
    seed: int
    summary: Summary
    began_s: float = 0.0
    ended_s: float = 0.0
    """On the host's monotonic clock, which a recording made there shares."""
    ttft_s: tuple[float, ...] = ()
    tpot_s: tuple[float, ...] = ()
    steps: tuple[StepSample, ...] = ()


@dataclass(frozen=True, slots=True)
class Results:
    """A measurement: its facts in words, and its runs."""

    title: str
    facts: dict[str, str]
    runs: tuple[Run, ...]

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms in the order of the command line; ratios are against the first."""
        return tuple(dict.fromkeys(run.arm for run in self.runs))

    @property
    def rates(self) -> tuple[float, ...]:
        return tuple(sorted({run.rate_per_s for run in self.runs}))

    def of(self, arm: str, rate_per_s: float) -> list[Run]:
        """Return one run per seed."""
        runs = [run for run in self.runs if (run.arm, run.rate_per_s) == (arm, rate_per_s)]
        return sorted(runs, key=lambda run: run.seed)


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of a figure over the seeds."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread | None:
    """Return median and range; None without values."""
    return Spread(statistics.median(values), min(values), max(values)) if values else None


def figure(summary: Summary, metric: str) -> float | None:
    """Return a number of a summary: a field, or a field's quantile such as `ttft.p50`; None if unknown."""
    name, _, part = metric.partition(".")
    value: Any = getattr(summary, name)
    if part and value is not None:
        value = getattr(value, part)
    return None if value is None or math.isnan(value) else float(value)


def figures(runs: Iterable[Run], metric: str) -> list[float]:
    """Return a figure of each run that has it."""
    values = (figure(run.summary, metric) for run in runs)
    return [value for value in values if value is not None]


def paired_ratios(results: Results, metric: str, arm: str, baseline: str, rate_per_s: float) -> list[float]:
    """Return the ratios of an arm to a baseline, seed by seed; seeds with a missing or zero figure are left
    out.
    """
    ours = {run.seed: figure(run.summary, metric) for run in results.of(arm, rate_per_s)}
    theirs = {run.seed: figure(run.summary, metric) for run in results.of(baseline, rate_per_s)}
    pairs = [(ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]
    return [ours_of_seed / other for ours_of_seed, other in pairs if ours_of_seed is not None and other]


def capacity(results: Results, arm: str) -> float | None:
    """Return the highest rate at which the median seed had at least `HELD_SHARE` of its requests good."""
    rates = [
        rate
        for rate in results.rates
        if (good := [share for run in results.of(arm, rate) if (share := run.summary.good_share) is not None])
        and statistics.median(good) >= HELD_SHARE
    ]
    return max(rates, default=None)


def write(results: Results, path: Path) -> None:
    """Write results as JSON."""
    path.write_text(json.dumps({"kind": KIND, **asdict(results)}, indent=1), encoding="utf-8")


def read(document: Any) -> Results:
    """Read results; raise `ValueError` for a document that `write` did not make."""
    kind = document.get("kind") if isinstance(document, dict) else document
    if kind != KIND:
        raise ValueError(f"kind is {kind!r}; accepted: {KIND!r}")
    try:
        runs = tuple(_run(row) for row in document["runs"])
        return Results(document["title"], document["facts"], runs)
    except (KeyError, TypeError) as error:
        raise ValueError(f"this is not the JSON of `baton bench`: {error}") from error


def _run(row: dict[str, Any]) -> Run:
    steps = tuple(StepSample(**step) for step in row["steps"])
    summary = _summary(row["summary"])
    times = {name: tuple(row[name]) for name in ("ttft_s", "tpot_s")}
    return Run(**(row | times | {"summary": summary, "steps": steps}))


def _summary(row: dict[str, Any]) -> Summary:
    quantiles = {
        field.name: Quantiles(**row[field.name])
        for field in fields(Summary)
        if isinstance(row.get(field.name), dict)
    }
    return Summary(**(row | quantiles))
