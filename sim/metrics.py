"""The metrics of a simulation, by the definitions of live measurements.

TTFT: router receipt to first token leaving the router, queueing included. ITL: each gap. TPOT: per request
(last - first) / (tokens - 1), undefined for one token. Goodput: requests, and output tokens, per second of
those that met every SLO they stated. The first tenth of the requests is dropped, and only requests that came
before the load ended count towards rates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sim.reporting.quantiles import Quantiles, quantiles, weighted_quantiles
from sim.result import WARMUP_SHARE, End, RequestResult, SimResult, WorkerResult


@dataclass(frozen=True, slots=True)
class Metrics:
    """The metrics of a run. Shares are of 1; a metric that is undefined for want of requests is None."""

    requests: int
    finished: int
    refused: int
    failed: int
    unfinished: int
    preemptions: int
    offered_per_s: float
    goodput_per_s: float
    good_share: float
    """The share of all requests."""
    goodput_tokens_per_s: float
    output_tokens_per_s: float
    kept_share: float | None
    """The share of requests accepted without risk whose TTFT, TPOT and ITL were all met."""
    kept_ttft_share: float | None
    kept_itl_share: float | None
    ttft: Quantiles | None
    tpot: Quantiles | None
    itl: Quantiles | None
    e2e: Quantiles | None
    median_queue_s: float | None
    busy_share: float
    """The share of the workers' time in which they computed."""
    mean_batch: float
    """Mean decodes of a step with decodes."""
    mixed_share: float
    """The share of steps that computed prompts."""
    kv_allocated: float
    """The share of decode workers' pools that is allocated or promised."""
    kv_waste: float
    """The share of allocated slots without a token."""
    preempted_work: float
    """Prompt tokens computed again, as a share of all computed."""


def measure(result: SimResult) -> Metrics:
    """Return the metrics of a run."""
    kept = result.judged
    came = kept[-1].asked.at_s - kept[0].asked.at_s
    span_s = came * len(kept) / max(1, len(kept) - 1) or 1.0
    done = [request for request in kept if request.end is End.FINISHED]
    good = [request for request in done if request.good]
    promised = [
        request
        for request in kept
        if request.promised_ttft_s is not None and not request.at_risk and _asks(request)
    ]
    decoders = [worker for worker in result.workers if worker.role == "decode"]
    computed = sum(worker.chunk_tokens for worker in result.workers)
    return Metrics(
        requests=len(kept),
        finished=len(done),
        refused=_count(kept, End.REFUSED),
        failed=_count(kept, End.FAILED),
        unfinished=_count(kept, End.UNFINISHED),
        preemptions=sum(worker.preemptions for worker in result.workers),
        offered_per_s=len(kept) / span_s,
        goodput_per_s=len(good) / span_s,
        good_share=len(good) / len(kept),
        goodput_tokens_per_s=sum(request.asked.output_tokens for request in good) / span_s,
        output_tokens_per_s=sum(request.asked.output_tokens for request in done) / span_s,
        kept_share=_share([request.good for request in promised]),
        kept_ttft_share=_share(
            [request.met_ttft for request in promised if request.asked.ttft_ms is not None]
        ),
        kept_itl_share=_share([request.met_itl for request in promised if request.asked.itl_ms is not None]),
        ttft=quantiles([request.ttft_s for request in done if request.ttft_s is not None]),
        tpot=quantiles([request.tpot_s for request in done if request.tpot_s is not None]),
        itl=_gaps(decoders, kept[0].asked.at_s),
        e2e=quantiles([request.e2e_s for request in done if request.e2e_s is not None]),
        median_queue_s=_median([request.queue_s for request in done if request.queue_s is not None]),
        busy_share=sum(worker.busy_s for worker in result.workers) / (result.ended_s * len(result.workers)),
        mean_batch=_ratio(
            decoders, lambda worker: worker.decode_tokens, lambda worker: len(worker.step_ends)
        ),
        mixed_share=_ratio(
            result.workers, lambda worker: worker.num_mixed_steps, lambda worker: worker.num_steps
        ),
        kv_allocated=sum(decoder.kv_allocated for decoder in decoders) / len(decoders),
        kv_waste=1.0
        - _ratio(
            decoders, lambda worker: worker.kv_held * worker.kv_allocated, lambda worker: worker.kv_allocated
        ),
        preempted_work=sum(worker.recomputed_tokens for worker in result.workers) / computed
        if computed
        else 0.0,
    )


@dataclass(frozen=True, slots=True)
class ProgramMetrics:
    """The metrics of the programs of a run."""

    programs: int
    calls: int
    in_time_share: float
    """The share of programs whose last call ended by their deadline."""
    in_time_per_s: float
    calls_ended: int


def measure_programs(result: SimResult) -> ProgramMetrics:
    """Return the metrics of the programs of a run, without the first tenth of them."""
    by_program: dict[int, list[RequestResult]] = {}
    for request in result.requests:
        if request.asked.turn is not None:
            by_program.setdefault(request.asked.turn.program, []).append(request)
    all_programs = list(by_program.values())
    judged = all_programs[int(len(all_programs) * WARMUP_SHARE) :]
    starts = [calls[0].start_s for calls in judged]
    in_time = [_is_in_time(calls) for calls in judged]
    return ProgramMetrics(
        programs=len(judged),
        calls=sum(map(len, judged)),
        in_time_share=sum(in_time) / len(judged),
        in_time_per_s=sum(in_time) / ((max(starts) - min(starts)) or 1.0),
        calls_ended=sum(call.end is End.FINISHED for calls in judged for call in calls),
    )


def _is_in_time(calls: Sequence[RequestResult]) -> bool:
    last = calls[-1]
    if last.end is not End.FINISHED or last.asked.turn is None or last.e2e_s is None:
        return False
    return last.asked.at_s + last.e2e_s <= last.start_s + last.asked.turn.deadline_s


def _gaps(workers: Sequence[WorkerResult], begin: float) -> Quantiles | None:
    """Return quantiles of the gaps between decode steps; a step's gap counts once for each sequence in it."""
    gaps, weights = [], []
    for worker in workers:
        if worker.pipeline is not None:
            begins, gap = worker.pipeline.token_gaps[worker.pipeline.token_gaps[:, 0] >= begin].T
            gaps.append(gap)
            weights.append(np.ones(len(begins), dtype=np.int32))
            continue
        gap = np.diff(worker.step_ends)
        weight = np.minimum(worker.step_sizes[1:], worker.step_sizes[:-1])
        late = worker.step_ends[:-1] >= begin
        gaps.append(gap[late])
        weights.append(weight[late])
    return weighted_quantiles(np.concatenate(gaps), np.concatenate(weights).astype(np.float64))


def _asks(request: RequestResult) -> bool:
    asked = request.asked
    return not (asked.ttft_ms is None and asked.tpot_ms is None and asked.itl_ms is None)


def _count(requests: Sequence[RequestResult], end: End) -> int:
    return sum(request.end is end for request in requests)


def _share(flags: Sequence[bool]) -> float | None:
    return sum(flags) / len(flags) if flags else None


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def _ratio(
    workers: Sequence[WorkerResult],
    above: Callable[[WorkerResult], float],
    below: Callable[[WorkerResult], float],
) -> float:
    total = sum(below(worker) for worker in workers)
    return sum(above(worker) for worker in workers) / total if total else 0.0
