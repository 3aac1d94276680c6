"""A worker asked as a router asks it, without a router: what the first token takes by itself."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from router.core.model.actions import SendDecode
from router.core.model.events import Event, StepReported, WorkerJoined
from router.links.ticker import Ticker
from router.links.worker_link import WorkerLink
from runtime.state.store import Store
from scheduling.request import Fence, SamplingParams, SequenceSpec, StopRules

NAME = "benchmark"

Ask = Callable[[Sequence[int]], Awaitable[float]]
"""Lets the worker compute a prompt; returns the seconds until its first token is here."""


@asynccontextmanager
async def worker_alone(redis_url: str) -> AsyncIterator[Ask]:
    """Connect to the only worker of a fleet, which computes prompts and decodes, beside its router."""
    store = await Store.connect(redis_url)
    try:
        [record] = await store.list_workers()
    finally:
        await store.close()
    joined, tokens = asyncio.Event(), asyncio.Queue[float]()

    def take(event: Event) -> None:
        if isinstance(event, WorkerJoined):
            joined.set()
        elif isinstance(event, StepReported) and event.tokens.handles:
            tokens.put_nowait(time.perf_counter())

    ticker, handles = Ticker(), itertools.count(1)
    link = WorkerLink(record, NAME, take, lambda: None, ticker)

    async def ask(prompt: Sequence[int]) -> float:
        handle = next(handles)
        start_s = time.perf_counter()
        fence = Fence("", f"{NAME}-{handle}", 0, 1, 0, "", record.incarnation, NAME)
        stop = StopRules(max_tokens=1, ignore_eos=True)
        spec = SequenceSpec(handle, fence, prompt, (), (0,), SamplingParams(temperature=0), stop)
        link.send(SendDecode(record.key, spec))
        return await tokens.get() - start_s

    running = asyncio.gather(ticker.run(), link.run())
    try:
        await joined.wait()
        yield ask
    finally:
        link.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
