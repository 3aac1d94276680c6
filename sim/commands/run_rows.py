"""Runs as rows of JSON, with the samples that plots need: each request's latencies, and the steps."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from reporting.results import StepSample
from scheduling.placement import Placement
from sim.commands.arguments import Load
from sim.metrics import WARMUP_SHARE, Metrics
from sim.result import End, SimResult
from sim.spec import FleetShape
from workloads.trace import summarise


@dataclass(frozen=True, slots=True)
class Samples:
    """Seconds, one per finished request, without the first tenth; `ended_s` is the end of the run."""

    ended_s: float
    ttft_s: tuple[float, ...]
    tpot_s: tuple[float, ...]


def samples(result: SimResult) -> Samples:
    """Return the samples of a run."""
    kept = result.requests[int(len(result.requests) * WARMUP_SHARE) :]
    done = [request for request in kept if request.end is End.FINISHED]
    return Samples(
        result.ended_s,
        tuple(round(request.ttft_s, 6) for request in done if request.ttft_s is not None),
        tuple(round(request.tpot_s, 6) for request in done if request.tpot_s is not None),
    )


def steps(result: SimResult) -> tuple[StepSample, ...]:
    """Return the steps that were kept."""
    return tuple(
        StepSample(step.end_s, step.step_s, worker.name, step.num_decodes, step.chunk_tokens)
        for worker in result.workers
        for step in worker.steps
    )


def run_row(
    policy: str,
    placement: Placement,
    fleet: FleetShape,
    token_budget: int | None,
    rate_per_s: float,
    seed: int,
    metrics: Metrics,
    samples: Samples,
) -> dict[str, Any]:
    """Return the row of a run for `reporting.simulated`."""
    return {
        "policy": policy,
        "placement": placement.value,
        "fleet": str(fleet),
        "token_budget": token_budget,
        "rate_per_s": rate_per_s,
        "seed": seed,
        "samples": asdict(samples),
        "metrics": metrics.as_dict(),
    }


def facts_of(profile: str, load: Load, noise: float) -> dict[str, Any]:
    """Return the facts that all runs share. A recorded trace has its own arrivals, lengths and promises."""
    facts = {
        "profile": profile,
        "workload": load.name,
        "noise": noise,
        "references": asdict(load.references),
    }
    if load.recorded is not None:
        return {**facts, "trace": summarise(load.recorded)}
    return {
        **facts,
        "arrivals": load.process,
        "duration_s": load.duration_s,
        "scale": load.scale,
        "promises": asdict(load.promises),
    }
