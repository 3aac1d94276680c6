"""Send a workload to a fleet and record the results: at a rate, or with constant concurrency."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from baton import AsyncClient, BatonError, Finished, Sampling, Slo, SloClass, Stop, Tokens
from baton.errors import InvalidRequest, Overloaded
from benchmarks.fleets.arms import Target
from benchmarks.fleets.metrics import RequestRecord
from workloads.shapes import RequestShape, prompt_ids

NO_PROMISE = Slo()


@dataclass(frozen=True, slots=True)
class Job:
    """A request, ready to send."""

    token_ids: list[int]
    output_tokens: int
    slo: Slo = NO_PROMISE


def jobs(at: Target, shapes: Sequence[RequestShape], seed: int | str, promise: Slo = NO_PROMISE) -> list[Job]:
    """Return random prompts for the shapes, cut to the model's context; each keeps the class of its shape.

    The same seed gives the same prompts: use another seed for each run, or the prefix cache would have them.
    """
    rng = random.Random(f"prompts:{seed}")
    made: list[Job] = []
    for shape in shapes:
        output = min(shape.output_tokens, at.max_context_tokens // 2)
        ids = prompt_ids(shape, rng, at.vocab_size)[: at.max_context_tokens - output]
        made.append(Job(ids, output, replace(promise, slo_class=SloClass(shape.slo_class))))
    return made


async def send(client: AsyncClient, job: Job) -> RequestRecord:
    """Send a request and record it up to its last event; refusals and errors are results too."""
    now = time.monotonic
    record = RequestRecord(now(), len(job.token_ids), job.output_tokens, job.slo)
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
    except BatonError as error:
        # An SLO that no idle fleet could meet is an invalid argument, but also a refusal for latency.
        is_unmeetable = isinstance(error, InvalidRequest) and error.field.startswith("slo.")
        if is_unmeetable or isinstance(error, Overloaded):
            record.refused_after_s = now() - record.sent_at
        else:
            record.error = f"{type(error).__name__}: {error}"
    return record


def _close(record: RequestRecord, event: Finished, at: float) -> None:
    record.finished_at = at
    record.ttft_s = event.delivery.ttft_ms / 1000
    record.tpot_s = event.delivery.tpot_ms / 1000 if event.delivery.tpot_ms is not None else None
    record.max_gap_s = event.delivery.max_gap_ms / 1000
    if len(record.token_times) != record.output_tokens:
        record.error = f"{len(record.token_times)} tokens came instead of {record.output_tokens}"


async def open_loop(
    client: AsyncClient, work: Sequence[Job], times: Iterable[float], done: Callable[[], None] = lambda: None
) -> list[RequestRecord]:
    """Send each job at its arrival time, whatever happened to those before; `done` is called after each."""
    start = time.monotonic()

    async def at(due: float, job: Job) -> RequestRecord:
        await asyncio.sleep(max(0.0, start + due - time.monotonic()))
        record = await send(client, job)
        done()
        return record

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(at(due, job)) for due, job in zip(times, work, strict=False)]
    return [task.result() for task in tasks]


async def closed_loop(client: AsyncClient, work: Sequence[Job], concurrency: int) -> list[RequestRecord]:
    """Keep `concurrency` requests running: the next is sent when one is over."""
    waiting = iter(work)

    async def lane() -> list[RequestRecord]:
        return [await send(client, job) for job in waiting]

    async with asyncio.TaskGroup() as group:
        lanes = [group.create_task(lane()) for _ in range(concurrency)]
    return [record for done in lanes for record in done.result()]
