"""Requests for the fleets that are recorded, and small things done to them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from baton import AsyncClient, Sampling, Slo, Stop, Tokens
from baton.errors import BatonError
from baton.fleet import Fleet, ManagedProcess
from tests.fleet.driving import snapshot, until


@dataclass(frozen=True, slots=True)
class Mix:
    """The kinds of requests to draw; lengths in tokens, from the first number to the second."""

    prompt: tuple[int, int] = (16, 200)
    output: tuple[int, int] = (8, 40)
    slos: tuple[Slo, ...] = (Slo(), Slo(ttft_ms=400), Slo(ttft_ms=600, tpot_ms=30))
    n: tuple[int, ...] = (1,)


def prompt_of(length: int, number: int) -> list[int]:
    """Return token ids that share no prefix with those of another number."""
    return [16 + (number * 7 + place) % 1900 for place in range(length)]


async def ask(client: AsyncClient, length: int, output: int, number: int, **options: Any) -> None:
    """Send one request and wait for its end; an error of the fleet is an end as well."""
    stop = Stop(max_tokens=output, ignore_eos=True)
    sampling = Sampling(seed=number, n=options.pop("n", None))
    with contextlib.suppress(BatonError):
        await client.complete(prompt_of(length, number), sampling=sampling, stop=stop, **options)


async def load(client: AsyncClient, per_s: float, seconds: float, seed: int, mix: Mix) -> None:
    """Send requests at random times for so long, and wait until all have ended."""
    rng = random.Random(seed)
    async with asyncio.TaskGroup() as group:
        end, number = asyncio.get_running_loop().time() + seconds, seed * 1000
        while asyncio.get_running_loop().time() < end:
            number += 1
            group.create_task(
                ask(
                    client, rng.randint(*mix.prompt), rng.randint(*mix.output), number,
                    slo=rng.choice(mix.slos), n=rng.choice(mix.n),
                )
            )  # fmt: skip
            await asyncio.sleep(rng.expovariate(per_s))


async def stream_and_strike(
    client: AsyncClient, length: int, output: int, number: int, strike: Callable[[], Awaitable[None]]
) -> None:
    """Send one request and call `strike` once half of its tokens are there."""
    stop = Stop(max_tokens=output, ignore_eos=True)
    struck = False
    with contextlib.suppress(BatonError):
        async for event in client.generate(
            prompt_of(length, number), sampling=Sampling(seed=number), stop=stop
        ):
            if isinstance(event, Tokens) and event.first_index >= output // 2 and not struck:
                struck = True
                await strike()


async def busy_decoder(fleet: Fleet, client: AsyncClient) -> ManagedProcess:
    """Return a decode worker that has something to do."""
    found: list[str] = []

    async def is_busy() -> bool:
        workers = (await snapshot(client)).workers
        found[:] = [
            worker.worker_id for worker in workers if worker.worker_id.startswith("decode") and worker.running
        ]
        return bool(found)

    await until(is_busy, "a decode worker is busy")
    return fleet.process(found[0])


async def until_connected(client: AsyncClient, count: int) -> None:
    async def connected() -> bool:
        return sum(worker.connected for worker in (await snapshot(client)).workers) == count

    await until(connected, f"{count} workers are connected")


async def together(*work: Coroutine[Any, Any, None]) -> None:
    async with asyncio.TaskGroup() as group:
        for part in work:
            group.create_task(part)
