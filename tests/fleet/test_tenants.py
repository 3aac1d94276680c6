"""Two tenants of a busy fleet: the small one gets what it asks for, the big one the rest, or all alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from baton import AsyncClient, Sampling, Slo, Stop, Tokens
from baton.errors import Refused
from baton.fleet import FleetSpec
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import assert_all_is_freed, until
from tests.fleets import DEMO_MODEL

pytestmark = [pytest.mark.integration, pytest.mark.alone]

PROFILE = "h200-llama-3.1-8b"
PROMPT_TOKENS = 6000
"""One takes the worker a sixth of a second, whatever the host's processor does meanwhile."""
SLO = Slo(ttft_ms=4000)
SPAN_S = 8.0
BIG_PER_S, SMALL_PER_S = 18, 2


async def one(client: AsyncClient, number: int, end: float) -> tuple[bool, bool]:
    """Whether the request was served, and whether it was by `end`."""
    prompt = [16 + (number + place) % 1000 for place in range(PROMPT_TOKENS)]
    prompt[0] = 16 + number % 1900  # no two share a prefix
    try:
        await client.complete(prompt, stop=Stop(max_tokens=4, ignore_eos=True), slo=SLO)
    except Refused:
        return False, False
    return True, asyncio.get_running_loop().time() <= end


async def served(client: AsyncClient, per_s: int, first: int) -> tuple[int, int]:
    """How many requests, sent at an even pace, were served, and how many while others still came."""
    loop, tasks = asyncio.get_running_loop(), []
    began = loop.time()
    for place in range(round(SPAN_S * per_s)):
        await asyncio.sleep(began + place / per_s - loop.time())
        tasks.append(asyncio.create_task(one(client, first + place, began + SPAN_S)))
    found = await asyncio.gather(*tasks)
    return sum(ever for ever, _ in found), sum(soon for _, soon in found)


@pytest.mark.timeout(240)
async def test_a_tenth_beside_nine_tenths_of_a_fleet_that_carries_a_third(
    run_dir: Path, make_fleet: MakeFleet
) -> None:
    spec = FleetSpec(
        model=DEMO_MODEL, prefill=0, timed=PROFILE, placement="aggregated", policy="slack", run_dir=run_dir
    )
    async with (
        make_fleet(spec) as fleet,
        AsyncClient(fleet.router_addresses, tenant="big") as big,
        AsyncClient(fleet.router_addresses, tenant="small") as small,
    ):
        of_one, alone = await served(big, BIG_PER_S, 0)
        assert of_one < 0.8 * BIG_PER_S * SPAN_S, "the fleet is busy"
        (of_big, big_soon), (of_small, small_soon) = await asyncio.gather(
            served(big, BIG_PER_S, 1000), served(small, SMALL_PER_S, 5000)
        )
        told = f"alone {of_one} ({alone}), beside it {of_big} ({big_soon}) and {of_small} ({small_soon})"
        assert of_small >= 0.85 * SMALL_PER_S * SPAN_S, told
        assert of_big < 0.8 * BIG_PER_S * SPAN_S, told
        # While requests come: a longer queue, as one tenant alone may build up, is served afterwards.
        assert big_soon + small_soon >= 0.85 * alone, told
        await assert_all_is_freed(fleet, big)


NUM_STREAMS, NUM_CHOICES = 16, 4
"""Together all seats of the profile's worker."""
LONG = Stop(max_tokens=800, ignore_eos=True)


@pytest.mark.timeout(240)
async def test_one_tenant_with_every_seat_gives_some_to_another(run_dir: Path, make_fleet: MakeFleet) -> None:
    """The big tenant has as many requests waiting as running."""
    spec = FleetSpec(model=DEMO_MODEL, prefill=0, timed="demo-cpu", placement="aggregated", run_dir=run_dir)
    ended: list[int] = []
    running: set[tuple[int, int]] = set()

    async def stream(client: AsyncClient, number: int) -> None:
        sampling = Sampling(n=NUM_CHOICES, temperature=1.0, seed=number)
        async for event in client.generate([16 + number, 20, 21], sampling=sampling, stop=LONG):
            if isinstance(event, Tokens):
                running.add((number, event.choice))
        ended.append(number)

    async def all_run() -> bool:
        return len(running) == NUM_STREAMS * NUM_CHOICES

    async with (
        make_fleet(spec) as fleet,
        AsyncClient(fleet.router_addresses, tenant="big") as big,
        AsyncClient(fleet.router_addresses, tenant="small") as small,
    ):
        streams = [asyncio.create_task(stream(big, number)) for number in range(NUM_STREAMS)]
        await until(all_run, "all sequences run")
        streams += [
            asyncio.create_task(stream(big, number)) for number in range(NUM_STREAMS, 2 * NUM_STREAMS)
        ]
        for number in range(3):
            await small.complete([30 + number, 40], stop=Stop(max_tokens=1))
            assert not ended, "it waited for the end of another tenant's stream"
        for task in streams:
            task.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        await assert_all_is_freed(fleet, big)
