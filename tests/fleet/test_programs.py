"""A busy fleet serves the call first whose program has little time left, whenever the call came."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from baton import AsyncClient, Program, Stop, Tokens
from baton.fleet import FleetSpec
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import assert_all_is_freed, until
from tests.fleets import DEMO_MODEL

pytestmark = [pytest.mark.integration, pytest.mark.alone]

PROFILE = "h200-llama-3.1-8b"
PROMPT_TOKENS = 12_000
"""One takes the worker a third of a second, whatever the host's processor does meanwhile."""
NUM_PATIENT = 12


async def first_token(
    client: AsyncClient, number: int, deadline_ms: int, accepted: list[int], order: list[int]
) -> None:
    """Make a call of a program of its own, and note when it is accepted and when its first token comes."""
    prompt = [16 + (number + place) % 1000 for place in range(PROMPT_TOKENS)]
    prompt[0] = 16 + number  # no two share a prefix
    program = Program(f"program {number}", deadline_ms)
    stream = client.generate(prompt, stop=Stop(max_tokens=2, ignore_eos=True), program=program)
    async for event in stream:
        if isinstance(event, Tokens):
            order.append(number)
            break
        if number not in accepted:
            accepted.append(number)


@pytest.mark.timeout(120)
async def test_little_time_left_goes_before_much_time_left(run_dir: Path, make_fleet: MakeFleet) -> None:
    spec = FleetSpec(
        model=DEMO_MODEL, prefill=0, timed=PROFILE, placement="aggregated", policy="slack", run_dir=run_dir
    )
    async with make_fleet(spec) as fleet, AsyncClient(fleet.router_addresses) as client:
        accepted: list[int] = []
        order: list[int] = []

        async def all_accepted() -> bool:
            return len(accepted) == NUM_PATIENT

        async with asyncio.TaskGroup() as calls:
            for number in range(NUM_PATIENT):
                calls.create_task(first_token(client, number, 600_000, accepted, order))
            await until(all_accepted, "all are accepted")
            assert len(order) < NUM_PATIENT // 2, "the others still wait"
            hasty = NUM_PATIENT
            num_before = len(order)
            await first_token(client, hasty, 20_000, accepted, order)
        assert order.index(hasty) <= num_before + 3, order
        assert sorted(order) == list(range(NUM_PATIENT + 1))
        await assert_all_is_freed(fleet, client)
