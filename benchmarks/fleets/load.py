"""Send a workload to a fleet and record the results: at a rate, or with constant concurrency."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from baton import Slo, SloClass
from benchmarks.doors.metrics import RequestRecord
from benchmarks.doors.sending import NO_PROMISE, Job, Send
from benchmarks.fleets.targets import Target
from sim.workloads.shapes import RequestShape, prompt_ids
from sim.workloads.trace import TraceRequest


def jobs(at: Target, shapes: Sequence[RequestShape], seed: int | str, promise: Slo = NO_PROMISE) -> list[Job]:
    """Return random prompts for the shapes, cut to the model's context; each keeps the class of its shape.

    The same seed gives the same prompts: use another seed for each run, or the prefix cache would have them.
    """
    rng = random.Random(f"prompts:{seed}")
    result: list[Job] = []
    for shape in shapes:
        output = min(shape.output_tokens, at.max_context_tokens // 2)
        ids = prompt_ids(shape, rng, at.vocab_size)[: at.max_context_tokens - output]
        result.append(Job(ids, output, replace(promise, slo_class=SloClass(shape.slo_class))))
    return result


def recorded_jobs(at: Target, requests: Iterable[TraceRequest], seed: int) -> Iterator[Job]:
    """Yield a prompt for each recorded request. Prompts begin alike where those of the trace did.

    They are made one by one, since all of a long trace would not fit into memory. Each seed has shared blocks
    of its own, since its run would otherwise find those of the run before in the prefix cache.
    """
    rng = random.Random(f"prompts:{seed}")
    for request in requests:
        ids = prompt_ids(request.shape, rng, at.vocab_size, f"{seed}:")
        slo_class = SloClass(request.slo_class)
        slo = Slo(request.ttft_ms, request.tpot_ms, request.itl_ms, slo_class=slo_class)
        yield Job(ids, request.output_tokens, slo)


async def open_loop(
    send: Send, work: Iterable[Job], times: Iterable[float], done: Callable[[], None] = lambda: None
) -> list[RequestRecord]:
    """Send each job at its arrival time, whatever happened to those before; `done` is called after each.

    A job is taken from `work` when the one before it has been sent.
    """
    start = time.monotonic()
    tasks: list[asyncio.Task[RequestRecord]] = []

    async def sent(job: Job) -> RequestRecord:
        record = await send(job)
        done()
        return record

    async with asyncio.TaskGroup() as group:
        for due, job in zip(times, work, strict=False):
            await asyncio.sleep(max(0.0, start + due - time.monotonic()))
            tasks.append(group.create_task(sent(job)))
    return [task.result() for task in tasks]


async def closed_loop(send: Send, work: Sequence[Job], concurrency: int) -> list[RequestRecord]:
    """Keep `concurrency` requests running: the next is sent when one is over."""
    waiting = iter(work)

    async def lane() -> list[RequestRecord]:
        return [await send(job) for job in waiting]

    async with asyncio.TaskGroup() as group:
        lanes = [group.create_task(lane()) for _ in range(concurrency)]
    return [record for done in lanes for record in done.result()]
