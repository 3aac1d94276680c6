"""Read the JSON of `baton simulate` as results, so that the same page and plots serve both."""

from __future__ import annotations

import math
from pathlib import PurePath
from typing import Any

from sim.reporting.quantiles import Quantiles
from sim.reporting.results import Results, Run, Summary

TIMES = ("ttft", "tpot", "itl", "e2e")
SAME = (
    "requests", "refused", "offered_per_s", "goodput_per_s", "good_share", "output_tokens_per_s",
    "busy_share", "kv_allocated",
)  # fmt: skip
"""Figures that a live and a simulated run have under the same name."""


def is_simulation(document: Any) -> bool:
    """Return True if this looks like the JSON of `baton simulate`."""
    return isinstance(document, dict) and "profile" in document and "runs" in document


def read(document: dict[str, Any]) -> Results:
    """Read results; raise `ValueError` for a document that `baton simulate` did not make."""
    try:
        runs = tuple(_run(row) for row in document["runs"])
        clock = f"simulated, profile {document['profile']}, noise {document['noise']:g}"
        facts = {"clock": clock, **_asked(document)}
        name = PurePath(document["workload"]).name
        return Results(f"{name} on {document['profile']}, simulated", facts, runs)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"this is not the JSON of `baton simulate`: {error!r}") from error


def _asked(document: dict[str, Any]) -> dict[str, str]:
    """Return the workload or the recorded trace that the fleet was asked to serve, as facts."""
    trace = document.get("trace")
    if trace is None:
        return {
            "workload": f"{document['workload']} × {document['scale']:g}",
            "arrivals": f"{document['arrivals']}, {document['duration_s']:g} s per run, first tenth dropped",
            "promise": promises(document),
        }
    return {**trace_facts(document["workload"], trace), "promise": promises(document)}


def trace_facts(name: str, trace: dict[str, Any]) -> dict[str, str]:
    """Return the figures of a recorded trace in words."""
    speed = trace.get("speed", 1.0)
    hurry = f", {speed:g} × as fast" if speed != 1 else ""
    return {
        "trace": name,
        "requests": "; ".join([f"{trace['requests']}, first tenth dropped", *trace.get("left_out", ())]),
        "arrivals": f"as recorded{hurry}, over {trace['duration_s']:.4g} s",
    }


def promises(document: dict[str, Any]) -> str:
    """Return the promises that requests ask for: one for all, or a spread for a recorded trace."""
    trace = document.get("trace")
    if trace is None:
        limits = [f"{name[:-3].upper()} {ms} ms" for name, ms in document["promises"].items() if ms]
    else:
        limits = [_spread(name, trace) for name in ("ttft", "tpot", "itl") if trace[name] is not None]
    return ", ".join(limits) or "none"


def _spread(name: str, trace: dict[str, Any]) -> str:
    limit = trace[name]
    low, high = limit["least_ms"], limit["most_ms"]
    limits = f"{low} ms" if low == high else f"{low} to {high} ms (median {limit['median_ms']:g})"
    everybody = limit["requests"] == trace["requests"]
    return f"{name.upper()} {limits} by {'all' if everybody else limit['requests']} requests"


def _run(row: dict[str, Any]) -> Run:
    budget = f" τ={row['token_budget']}" if row["token_budget"] else ""
    arm = f"{row['policy']}/{row['placement']} {row['fleet']}{budget}"
    samples = row["samples"]
    return Run(
        arm,
        round(row["rate_per_s"], 3),
        row["seed"],
        _summary(row["metrics"]),
        ended_s=samples["ended_s"],
        ttft_s=tuple(samples["ttft_s"]),
        tpot_s=tuple(samples["tpot_s"]),
    )


def _summary(metrics: dict[str, Any]) -> Summary:
    offered, requests = metrics["offered_per_s"], metrics["requests"]
    times: dict[str, Any]
    times = {name: metrics[name] and Quantiles(**metrics[name]) for name in TIMES}
    return Summary(
        **{name: metrics[name] for name in SAME},
        **times,
        completed=metrics["finished"],
        failed=metrics["failed"] + metrics["unfinished"],
        duration_s=requests / offered,
        completed_per_s=metrics["finished"] / requests * offered,
        accepted_that_kept_ttft=metrics["kept_ttft_share"],
        total_tokens_per_s=math.nan,
        refusal=None,
        kv_utilisation=1.0 - metrics["kv_waste"],
    )
