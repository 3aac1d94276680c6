"""Measure a fleet without load, and at most: the units of promises and loads."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Sequence

from benchmarks.doors.metrics import RequestRecord
from benchmarks.doors.sending import Job
from benchmarks.fleets.load import closed_loop, jobs
from benchmarks.fleets.targets import Target
from sim.workloads.shapes import RequestShape, shapes
from sim.workloads.slo import REFERENCE_CONTEXT, REFERENCE_SEQS, References

UNLOADED_REQUESTS = 16
CAPACITY_CONCURRENCY = 64
CAPACITY_REQUESTS = 192
OVERLAP_STEPS = 32
"""Steps for which all reference sequences decode together."""


async def measure_references(at: Target, lengths: Sequence[RequestShape], scale: float) -> References:
    """Measure D and the unloaded prefill of these prompts; raise `RuntimeError` if a request fails."""
    prompts = [RequestShape(shape.prompt_tokens, 2) for shape in lengths]
    alone = await _run(at, jobs(at, prompts, f"unloaded:{at.name}"), 1)
    prefill_s = statistics.median(record.ttft_s for record in alone if record.ttft_s is not None)
    return References(await _decode_step_s(at, scale), prefill_s)


async def measure_capacity(at: Target, workload: str, scale: float, cap: int | None) -> float:
    """Return the requests per second of a fleet that is kept full."""
    work = jobs(at, shapes(workload, CAPACITY_REQUESTS, 0, scale, cap), f"capacity:{at.name}")
    records = await _run(at, work, CAPACITY_CONCURRENCY)
    ends = sorted(record.finished_at for record in records if record.finished_at is not None)
    # Between the first and the last tenth: the fleet fills and empties outside of it.
    first, last = len(ends) // 10, len(ends) * 9 // 10
    return (last - first) / (ends[last] - ends[first])


async def _decode_step_s(at: Target, scale: float) -> float:
    prompt = min(max(1, round(REFERENCE_CONTEXT * scale)), at.max_context_tokens // 2)
    (alone,) = await _run(at, _alike(at, 1, prompt, OVERLAP_STEPS), 1)
    assert alone.ttft_s is not None, "a request that did not fail has a first token"
    step_s = max(alone.tpot_s or 0.0, 1e-4)
    # The first sequences have to last until the last prompt is computed.
    output = math.ceil(REFERENCE_SEQS * alone.ttft_s / step_s) + OVERLAP_STEPS
    output = min(output, at.max_context_tokens - prompt)
    together = await _run(at, _alike(at, REFERENCE_SEQS, prompt, output), REFERENCE_SEQS)
    return statistics.median(gaps_together(together))


def _alike(at: Target, count: int, prompt: int, output: int) -> list[Job]:
    rng = random.Random(f"alike:{at.name}:{count}")
    prompts = [rng.choices(range(at.vocab_size), k=prompt) for _ in range(count)]
    return [Job(ids, output) for ids in prompts]


def gaps_together(records: Sequence[RequestRecord]) -> list[float]:
    """Return the gaps between tokens while the most sequences decode; tokens of one event have none."""
    spans = [(record.token_times[0], record.token_times[-1]) for record in records]
    starts = [start for start, _ in spans]
    best = max(starts, key=lambda at: sum(start <= at < end for start, end in spans))
    until = min(end for start, end in spans if start <= best < end)
    return [
        later - earlier
        for record in records
        for earlier, later in itertools.pairwise(record.token_times)
        if best <= earlier and later <= until and later > earlier
    ]


async def _run(at: Target, work: Sequence[Job], concurrency: int) -> list[RequestRecord]:
    records = await closed_loop(at.send, work, concurrency)
    broken = next((record for record in records if not record.completed), None)
    if broken is not None:
        raise RuntimeError(f"{at.name}: a request without a promise was not served: {broken.error}")
    return records
