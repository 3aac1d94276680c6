"""Baton's whole fleet: a router and one worker, which are processes, called through the SDK by gRPC."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from baton import AsyncClient, Sampling, Stop, Tokens
from baton.fleet import FleetSpec
from benchmarks.cpu.engines.loads import KV_TOKENS, Load, Played, steps_of
from benchmarks.cpu.engines.process_engine import Setting
from benchmarks.fleets.targets import Variant, started

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class FleetEngine:
    """A running fleet."""

    client: AsyncClient

    async def play(self, load: Load, prompts: Sequence[Sequence[int]]) -> Played:
        """Send the prompts at once; cancel them once all steps were timed, if steps are."""
        arrivals: list[list[float]] = [[] for _ in prompts]
        first_tokens = [0] * len(prompts)
        step_s: float | None = None
        timed = asyncio.Event()

        async def one(index: int) -> None:
            nonlocal step_s
            stop = Stop(max_tokens=load.longest_output, ignore_eos=True)
            stream = self.client.generate(list(prompts[index]), sampling=Sampling(temperature=0.0), stop=stop)
            async with stream:
                async for event in stream:
                    if not isinstance(event, Tokens):
                        continue
                    if not arrivals[index]:
                        first_tokens[index] = event.token_ids[0]
                    arrivals[index] += [time.perf_counter()] * len(event.token_ids)
                    if load.num_steps and len(arrivals[index]) > load.num_steps and not timed.is_set():
                        step_s = steps_of(arrivals, load.num_steps)
                        if step_s is not None:
                            timed.set()
            if load.num_steps and not timed.is_set():
                raise RuntimeError(f"an output ended before {load.num_steps} steps of all were timed")

        start_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(index)) for index in range(len(prompts))]
            if load.num_steps:
                await timed.wait()
                for task in tasks:
                    task.cancel()
        last = max(times[-1] for times in arrivals)
        return Played(0.0 if load.num_steps else last - start_s, step_s or 0.0, first_tokens)


@asynccontextmanager
async def baton(setting: Setting, quantisation: str = "none") -> AsyncIterator[FleetEngine]:
    """Run a fleet of one aggregated worker while the block lasts."""
    flags = {
        "--dtype": setting.dtype,
        "--block-size": BLOCK_SIZE,
        "--num-blocks": KV_TOKENS // BLOCK_SIZE,
        "--token-budget": setting.token_budget,
    }
    extra = {"decode": [str(part) for pair in flags.items() for part in pair]}
    spec = FleetSpec(
        setting.model, prefill=0, threads=setting.threads, quantisation=quantisation, extra_args=extra
    )
    async with started(Variant(placement="aggregated"), spec) as target:
        yield FleetEngine(target.client)
