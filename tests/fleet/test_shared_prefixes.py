"""The beginning of a prompt comes from a worker that has it; a source that fails costs time alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from baton import AsyncClient
from baton.fleet import Fleet, FleetSpec
from kvtransfer.loans.links import FORGET_S
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import DEMO_MODEL, Answer, assert_all_is_freed, greedy, labelled, metric

pytestmark = pytest.mark.integration

NUM_TOKENS = 2600
"""So many take long to compute, and a fetch may take as long: on a busy machine it is late by far less."""
PROMPTS = [[3 + (i * step) % 89 for i in range(NUM_TOKENS)] for step in (7, 3, 5)]
OTHERS = [[3 + (i * step) % 83 for i in range(NUM_TOKENS)] for step in (11, 13, 17)]
BLOCK_TOKENS = 16
FEW_BLOCKS = 360
"""Fewer than the blocks of three prompts."""
COMPUTES = "prefill-0"


def spec_of(
    run_dir: Path, *, share: bool = True, decode: int = 1, source_args: tuple[str, ...] = ()
) -> FleetSpec:
    """Return a fleet whose prefill worker soon forgets what its decode workers still have."""
    args = ("--dtype", "float64")
    return FleetSpec(
        model=DEMO_MODEL,
        prefill=1,
        decode=decode,
        placement="disaggregated",
        share_prefixes=share,
        extra_args={
            "prefill": (*args, "--num-blocks", str(FEW_BLOCKS)),
            "decode": (*args, "--num-blocks", "2000", *source_args),
        },
        run_dir=run_dir,
    )


async def ask(fleet: Fleet, prompts: list[list[int]]) -> list[Answer]:
    """One prompt after the other, so that each finds what those before have left."""
    async with AsyncClient(fleet.router_addresses) as client:
        answers = [(await greedy(client, [prompt], 8))[0] for prompt in prompts]
        await assert_all_is_freed(fleet, client)
    return answers


async def outcomes(fleet: Fleet, name: str = COMPUTES) -> dict[str, float]:
    return await labelled(fleet, name, "baton_kv_prefix_fetches_total", "outcome")


async def ask_until(fleet: Fleet, outcome: str) -> tuple[int, Answer]:
    """Ask for one prompt after the other until a fetch ends this way; return its place and its answer.

    A fetch that takes longer than computing is stopped, as may happen on a machine that does much else. Then
    none is tried for `FORGET_S`.
    """
    for place, prompt in enumerate(PROMPTS):
        (answer,) = await ask(fleet, [prompt])
        if (await outcomes(fleet)).get(outcome):
            return place, answer
        await ask(fleet, OTHERS)
        await asyncio.sleep(FORGET_S)
    raise AssertionError(f"no fetch was {outcome}: {await outcomes(fleet)}")


async def test_a_prefix_comes_from_a_worker_that_has_it(make_fleet: MakeFleet, run_dir: Path) -> None:
    async with make_fleet(spec_of(run_dir)) as fleet:
        firsts = await ask(fleet, PROMPTS)
        await ask(fleet, OTHERS)
        place, again = await ask_until(fleet, "completed")
        num_fetched = await metric(fleet, COMPUTES, "baton_kv_prefix_blocks_fetched_total")
        num_lent = await metric(fleet, "decode-0", "baton_kv_prefix_blocks_lent_total")
    assert [first.cached_prompt_tokens for first in firsts] == [0] * len(PROMPTS)
    assert again.cached_prompt_tokens == (NUM_TOKENS - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    assert num_lent >= num_fetched >= again.cached_prompt_tokens // BLOCK_TOKENS
    assert again.token_ids == firsts[place].token_ids
    assert again.logprobs == pytest.approx(firsts[place].logprobs)
