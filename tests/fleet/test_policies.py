"""Whatever a step is made of, a stream's tokens are the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from baton import AsyncClient, Sampling, Stop
from baton.fleet import FleetSpec
from baton.fleet.spec import POLICIES
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import assert_all_is_freed
from tests.fleets import DEMO_MODEL

pytestmark = pytest.mark.integration

# Few seats and a small budget: prompts are cut and requests wait, where a policy cuts or lets wait.
SIZES = ("--dtype", "float64", "--num-blocks", "64", "--max-num-seqs", "3", "--token-budget", "48")
PROMPTS = [[16 + (7 * place + 3 * row) % 500 for place in range(20 + 23 * row)] for row in range(5)]
LENGTHS = (9, 4, 12, 1, 7)


async def answers(policy: str, run_dir: Path, make_fleet: MakeFleet) -> list[tuple[int, ...]]:
    """Return the answers to all prompts at once, by a fleet of one decode worker."""
    spec = FleetSpec(
        model=DEMO_MODEL,
        prefill=0,
        policy=policy,
        placement="aggregated",
        run_dir=run_dir,
        extra_args={"decode": SIZES},
    )
    async with make_fleet(spec) as fleet, AsyncClient(fleet.router_addresses) as client:
        done = await asyncio.gather(
            *(
                client.complete(
                    prompt,
                    sampling=Sampling(temperature=0.0),
                    stop=Stop(max_tokens=length, ignore_eos=True),
                )
                for prompt, length in zip(PROMPTS, LENGTHS, strict=True)
            )
        )
        await assert_all_is_freed(fleet, client)
    return [answer.choices[0].token_ids for answer in done]


async def test_every_policy_streams_the_same_tokens(run_dir: Path, make_fleet: MakeFleet) -> None:
    two_at_a_time = asyncio.Semaphore(2)

    async def of(policy: str) -> list[tuple[int, ...]]:
        async with two_at_a_time:
            return await answers(policy, run_dir / policy, make_fleet)

    found = dict(zip(POLICIES, await asyncio.gather(*(of(policy) for policy in POLICIES)), strict=True))
    assert [len(tokens) for tokens in found["slack"]] == list(LENGTHS)
    for policy in POLICIES:
        assert found[policy] == found["slack"], policy
