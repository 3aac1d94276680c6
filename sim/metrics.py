"""A simulation's result in figures, by the definitions that live measurements use.

TTFT: router receipt to first token leaving the router, queueing included. ITL: each gap. TPOT: per request
(last - first) / (tokens - 1), undefined for one token. Goodput: requests, and output tokens, per second of
those that met every SLO they stated. The first tenth of the requests is dropped, and only requests that came
before the load ended count towards rates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from reporting.quantiles import Quantiles, quantiles, weighted_quantiles
from sim.result import End, RequestResult, SimResult, WorkerResult

WARMUP_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Metrics:
    """One run. Shares are of 1; what is undefined without requests of a kind is None."""

    requests: int
    finished: int
    refused: int
    failed: int
    unfinished: int
    preemptions: int
    offered_per_s: float
    goodput_per_s: float
    good_share: float
    """Of all that came."""
    goodput_tokens_per_s: float
    output_tokens_per_s: float
    kept_share: float | None
    """Of the accepted that were not taken at risk, those whose TTFT, TPOT and ITL were all met."""
    kept_ttft_share: float | None
    kept_itl_share: float | None
    ttft: Quantiles | None
    tpot: Quantiles | None
    itl: Quantiles | None
    e2e: Quantiles | None
    median_queue_s: float | None
    busy_share: float
    """Of the workers' time in which they computed."""
    mean_batch: float
    """Decodes in a step that has any."""
    mixed_share: float
    """Steps that computed prompts."""
    kv_allocated: float
    """Share of decode workers' pools that is allocated or promised."""
    kv_waste: float
    """Share of allocated slots without a token."""
    preempted_work: float
    """Prompt tokens computed again, of all computed."""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def measure(result: SimResult) -> Metrics:
    """Fold a run."""
    kept = result.requests[int(len(result.requests) * WARMUP_SHARE) :]
    came = kept[-1].asked.at_s - kept[0].asked.at_s
    span_s = came * len(kept) / max(1, len(kept) - 1) or 1.0
    done = [one for one in kept if one.end is End.FINISHED]
    good = [one for one in done if one.good]
    promised = [one for one in kept if one.promised_ttft_s is not None and not one.at_risk and _asks(one)]
    decoders = [one for one in result.workers if one.role == "decode"]
    computed = sum(one.chunk_tokens for one in result.workers)
    return Metrics(
        requests=len(kept),
        finished=len(done),
        refused=_count(kept, End.REFUSED),
        failed=_count(kept, End.FAILED),
        unfinished=_count(kept, End.UNFINISHED),
        preemptions=sum(one.preemptions for one in result.workers),
        offered_per_s=len(kept) / span_s,
        goodput_per_s=len(good) / span_s,
        good_share=len(good) / len(kept),
        goodput_tokens_per_s=sum(one.asked.output_tokens for one in good) / span_s,
        output_tokens_per_s=sum(one.asked.output_tokens for one in done) / span_s,
        kept_share=_share([one.good for one in promised]),
        kept_ttft_share=_share([one.met_ttft for one in promised if one.asked.ttft_ms is not None]),
        kept_itl_share=_share([one.met_itl for one in promised if one.asked.itl_ms is not None]),
        ttft=quantiles([one.ttft_s for one in done if one.ttft_s is not None]),
        tpot=quantiles([one.tpot_s for one in done if one.tpot_s is not None]),
        itl=_gaps(decoders, kept[0].asked.at_s),
        e2e=quantiles([one.e2e_s for one in done if one.e2e_s is not None]),
        median_queue_s=_median([one.queue_s for one in done if one.queue_s is not None]),
        busy_share=sum(one.busy_s for one in result.workers) / (result.ended_s * len(result.workers)),
        mean_batch=_ratio(decoders, lambda one: one.decode_tokens, lambda one: len(one.step_ends)),
        mixed_share=_ratio(result.workers, lambda one: one.num_mixed_steps, lambda one: one.num_steps),
        kv_allocated=sum(one.kv_allocated for one in decoders) / len(decoders),
        kv_waste=1.0
        - _ratio(decoders, lambda one: one.kv_held * one.kv_allocated, lambda one: one.kv_allocated),
        preempted_work=sum(one.recomputed_tokens for one in result.workers) / computed if computed else 0.0,
    )


def _gaps(workers: Sequence[WorkerResult], begin: float) -> Quantiles | None:
    """Of all gaps inside decode steps' order; a step's gap counts once for each sequence in it."""
    gaps, weights = [], []
    for worker in workers:
        gap = np.diff(worker.step_ends)
        weight = np.minimum(worker.step_sizes[1:], worker.step_sizes[:-1])
        late = worker.step_ends[:-1] >= begin
        gaps.append(gap[late])
        weights.append(weight[late])
    return weighted_quantiles(np.concatenate(gaps), np.concatenate(weights).astype(np.float64))


def _asks(one: RequestResult) -> bool:
    asked = one.asked
    return not (asked.ttft_ms is None and asked.tpot_ms is None and asked.itl_ms is None)


def _count(requests: Sequence[RequestResult], end: End) -> int:
    return sum(one.end is end for one in requests)


def _share(flags: Sequence[bool]) -> float | None:
    return sum(flags) / len(flags) if flags else None


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def _ratio(
    workers: Sequence[WorkerResult],
    above: Callable[[WorkerResult], float],
    below: Callable[[WorkerResult], float],
) -> float:
    total = sum(below(one) for one in workers)
    return sum(above(one) for one in workers) / total if total else 0.0
