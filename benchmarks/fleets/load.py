"""Send a workload to a fleet and record the results: at a rate, or with constant concurrency."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from baton import Slo, SloClass
from benchmarks.doors.metrics import RequestRecord
from benchmarks.doors.sending import NO_PROMISE, Job, Send
from benchmarks.fleets.targets import Target
from sim.workloads.shapes import RequestShape, prompt_ids


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


async def open_loop(
    send: Send, work: Sequence[Job], times: Iterable[float], done: Callable[[], None] = lambda: None
) -> list[RequestRecord]:
    """Send each job at its arrival time, whatever happened to those before; `done` is called after each."""
    start = time.monotonic()

    async def at(due: float, job: Job) -> RequestRecord:
        await asyncio.sleep(max(0.0, start + due - time.monotonic()))
        record = await send(job)
        done()
        return record

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(at(due, job)) for due, job in zip(times, work, strict=False)]
    return [task.result() for task in tasks]


async def closed_loop(send: Send, work: Sequence[Job], concurrency: int) -> list[RequestRecord]:
    """Keep `concurrency` requests running: the next is sent when one is over."""
    waiting = iter(work)

    async def lane() -> list[RequestRecord]:
        return [await send(job) for job in waiting]

    async with asyncio.TaskGroup() as group:
        lanes = [group.create_task(lane()) for _ in range(concurrency)]
    return [record for done in lanes for record in done.result()]
