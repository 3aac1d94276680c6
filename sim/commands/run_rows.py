"""Runs as rows of JSON, with the samples that plots need: each request's latencies, and the steps."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sim.commands.arguments import Load
from sim.commands.arms import Arm
from sim.metrics import Metrics
from sim.result import End, SimResult


def samples(result: SimResult) -> tuple[list[float], list[float]]:
    """Return the TTFT and the TPOT of requests that finished, in seconds."""
    done = [request for request in result.judged if request.end is End.FINISHED]
    return (
        [round(request.ttft_s, 6) for request in done if request.ttft_s is not None],
        [round(request.tpot_s, 6) for request in done if request.tpot_s is not None],
    )


def run_row(arm: Arm, rate_per_s: float, seed: int, result: SimResult, metrics: Metrics) -> dict[str, Any]:
    """Return the row of a run for `sim.reporting.simulated`."""
    ttft_s, tpot_s = samples(result)
    return {
        **arm.as_row(),
        "rate_per_s": rate_per_s,
        "seed": seed,
        "samples": {"ended_s": result.ended_s, "ttft_s": ttft_s, "tpot_s": tpot_s},
        "metrics": asdict(metrics),
    }


def facts_of(load: Load, noise: float) -> dict[str, Any]:
    """Return the facts that all runs share. A recorded trace has its own arrivals, lengths and promises."""
    facts = {
        "profile": load.profile.name,
        "workload": load.name,
        "noise": noise,
        "references": asdict(load.references),
    }
    if load.recorded is not None:
        return {**facts, "trace": load.recorded.facts()}
    return {
        **facts,
        "arrivals": load.process,
        "duration_s": load.duration_s,
        "scale": load.scale,
        "promises": asdict(load.promises),
    }
