"""The JSON of `baton simulate` as results, so that one page and one set of plots serve both clocks."""

from __future__ import annotations

import math
from typing import Any

from reporting.quantiles import Quantiles
from reporting.results import Results, Run
from reporting.summary import Summary


def is_simulation(document: Any) -> bool:
    """It looks like what `baton simulate --json` writes."""
    return isinstance(document, dict) and "profile" in document and "runs" in document


def read(document: dict[str, Any]) -> Results:
    """Raises `ValueError` for a document that `baton simulate` did not make."""
    try:
        runs = tuple(_run(row) for row in document["runs"])
        promises = ", ".join(
            f"{name[:-3].upper()} {ms} ms" for name, ms in document["promises"].items() if ms
        )
        facts = {
            "clock": f"simulated, profile {document['profile']}, noise {document['noise']:g}",
            "workload": f"{document['workload']} × {document['scale']:g}",
            "arrivals": f"{document['arrivals']}, {document['duration_s']:g} s per run, first tenth dropped",
            "promise": promises or "none",
        }
        return Results(f"{document['workload']} on {document['profile']}, simulated", facts, runs)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"this is not the JSON of `baton simulate`: {error!r}") from error


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
    return Summary(
        requests=requests,
        completed=metrics["finished"],
        refused=metrics["refused"],
        failed=metrics["failed"] + metrics["unfinished"],
        duration_s=requests / offered,
        offered_per_s=offered,
        completed_per_s=metrics["finished"] / requests * offered,
        goodput_per_s=metrics["goodput_per_s"],
        good_share=metrics["good_share"],
        accepted_that_kept_ttft=metrics["kept_ttft_share"],
        output_tokens_per_s=metrics["output_tokens_per_s"],
        total_tokens_per_s=math.nan,
        ttft=_quantiles(metrics["ttft"]),
        tpot=_quantiles(metrics["tpot"]),
        itl=_quantiles(metrics["itl"]),
        e2e=_quantiles(metrics["e2e"]),
        refusal=None,
        kv_utilisation=1.0 - metrics["kv_waste"],
        busy_share=metrics["busy_share"],
        kv_allocated=metrics["kv_allocated"],
    )


def _quantiles(row: dict[str, Any] | None) -> Quantiles | None:
    return None if row is None else Quantiles(**row)
