"""Send a workload to a fleet and record the results: at a rate, or with constant concurrency."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from baton import AsyncClient, BatonError, Finished, Sampling, Slo, SloClass, Stop, Tokens
from baton.errors import InvalidRequest, Overloaded
from benchmarks.fleets.metrics import RequestRecord
from workloads.shapes import RequestShape, prompt_ids


@dataclass(frozen=True, slots=True)
class Job:
    """A request, ready to send."""

    token_ids: list[int]
    output_tokens: int
    slo: Slo = field(default_factory=Slo)


def jobs(
    shapes: Sequence[RequestShape],
    *,
    vocab_size: int,
    max_context_tokens: int,
    seed: int | str,
    ttft_ms: int | None = None,
    tpot_ms: int | None = None,
    itl_ms: int | None = None,
) -> list[Job]:
    """Return random prompts for the shapes, cut to the model's context.

    The same seed gives the same prompts: use another seed for each run, or the prefix cache would have them.
    """
    rng = random.Random(f"prompts:{seed}")
    made: list[Job] = []
    for shape in shapes:
        output = min(shape.output_tokens, max_context_tokens // 2)
        ids = prompt_ids(shape, rng, vocab_size)[: max_context_tokens - output]
        slo = Slo(ttft_ms=ttft_ms, tpot_ms=tpot_ms, itl_ms=itl_ms, slo_class=SloClass(shape.slo_class))
        made.append(Job(ids, output, slo))
    return made


async def send(client: AsyncClient, job: Job) -> RequestRecord:
    """Send a request and record it up to its last event; refusals and errors are results too."""
    now = time.monotonic
    record = RequestRecord(
        sent_at=now(),
        prompt_tokens=len(job.token_ids),
        output_tokens=job.output_tokens,
        slo_class=job.slo.slo_class.value,
        ttft_slo_s=job.slo.ttft_ms / 1000 if job.slo.ttft_ms else None,
        tpot_slo_s=job.slo.tpot_ms / 1000 if job.slo.tpot_ms else None,
        itl_slo_s=job.slo.itl_ms / 1000 if job.slo.itl_ms else None,
    )
    stream = client.generate(
        job.token_ids,
        sampling=Sampling(temperature=0.0),
        stop=Stop(max_tokens=job.output_tokens, ignore_eos=True),
        slo=job.slo,
    )
    try:
        async for event in stream:
            if isinstance(event, Tokens):
                record.token_times += [now()] * len(event.token_ids)
            elif isinstance(event, Finished):
                _close(record, event, now())
    except Overloaded:
        record.refused_after_s = now() - record.sent_at
    except InvalidRequest as error:
        # An SLO that no idle fleet could meet is an invalid argument, but also a refusal for latency.
        if error.field.startswith("slo."):
            record.refused_after_s = now() - record.sent_at
        else:
            record.error = f"{type(error).__name__}: {error}"
    except BatonError as error:
        record.error = f"{type(error).__name__}: {error}"
    return record


def _close(record: RequestRecord, event: Finished, at: float) -> None:
    record.finished_at = at
    record.ttft_s = event.delivery.ttft_ms / 1000
    record.tpot_s = event.delivery.tpot_ms / 1000 if event.delivery.tpot_ms is not None else None
    record.max_gap_s = event.delivery.max_gap_ms / 1000

    if len(record.token_times) != record.output_tokens:
        record.error = f"{len(record.token_times)} tokens came instead of {record.output_tokens}"


Progress = Callable[[int], None]
"""Called with 1 for every request that is over."""


async def open_loop(
    client: AsyncClient, work: Sequence[Job], times: Iterator[float], progress: Progress
) -> list[RequestRecord]:
    """Send each job at its arrival time, whatever happened to those before."""
    start = time.monotonic()

    async def at(due: float, job: Job) -> RequestRecord:
        await asyncio.sleep(max(0.0, start + due - time.monotonic()))
        record = await send(client, job)
        progress(1)
        return record

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(at(due, job)) for due, job in zip(times, work, strict=False)]
    return [task.result() for task in tasks]


async def closed_loop(
    client: AsyncClient, work: Sequence[Job], concurrency: int, progress: Progress
) -> list[RequestRecord]:
    """Keep `concurrency` requests running: the next is sent when one is over."""
    waiting = iter(work)
    records: list[RequestRecord] = []

    async def lane() -> None:
        for job in waiting:
            records.append(await send(client, job))
            progress(1)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(lane())
    return records
