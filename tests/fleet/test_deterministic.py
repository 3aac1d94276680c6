"""A deterministic fleet in fp32: the same bits on every path, in company, and after a death."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from baton import AsyncClient, Sampling, Stop, Tokens
from baton.fleet import Fleet, FleetSpec
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import Answer, greedy, metric, snapshot
from tests.fleets import DEMO_MODEL

pytestmark = pytest.mark.integration

PROMPTS = [[3 + (i * step) % 90 for i in range(length)] for step, length in ((1, 150), (7, 40), (11, 9))]
MAX_TOKENS = 160
STRUCK_TOKENS = 480
"""So many that the sequence usually still runs when a client that lags has come to know where."""
ATTEMPTS = 10
SPEC_ARGS = {
    "router-0": ("--placement", "disaggregated"),
    "router-1": ("--placement", "aggregated"),
    "prefill": ("--token-budget", "64"),
}


async def test_paths_company_and_a_death_change_no_bit(run_dir: Path, make_fleet: MakeFleet) -> None:
    spec = FleetSpec(
        DEMO_MODEL,
        decode=2,
        routers=2,
        deterministic=True,
        threads=1,
        extra_args=SPEC_ARGS,
        run_dir=run_dir,
    )
    async with (
        make_fleet(spec) as fleet,
        AsyncClient(fleet.router_addresses[0]) as handing_over,
        AsyncClient(fleet.router_addresses[1]) as by_itself,
    ):
        assert (await handing_over.describe()).deterministic
        alone = [(await greedy(handing_over, [prompt], MAX_TOKENS))[0] for prompt in PROMPTS]
        assert sum([await metric(fleet, f"decode-{i}", "baton_kv_handoffs_total") for i in range(2)]) > 0
        together = await greedy(by_itself, PROMPTS, MAX_TOKENS)
        bits = [(answer.token_ids, answer.logprobs) for answer in alone]
        assert [(entry.token_ids, entry.logprobs) for entry in together] == bits

        company = asyncio.create_task(greedy(by_itself, PROMPTS[1:], MAX_TOKENS))
        struck = await struck_stream(fleet, by_itself)
        assert [(entry.token_ids, entry.logprobs) for entry in await company] == bits[1:]
        assert (struck.token_ids[:MAX_TOKENS], struck.logprobs[:MAX_TOKENS]) == bits[0]

        # On the worker that is left, without what a death changed, and from cached blocks.
        (undisturbed,) = await greedy(by_itself, PROMPTS[:1], STRUCK_TOKENS)
        (cached,) = await greedy(by_itself, PROMPTS[:1], STRUCK_TOKENS)
        assert cached.cached_prompt_tokens > 0
        for answer in (undisturbed, cached):
            assert (answer.token_ids, answer.logprobs) == (struck.token_ids, struck.logprobs)


async def struck_stream(fleet: Fleet, client: AsyncClient) -> Answer:
    """Stream the first prompt, kill the worker that runs it meanwhile, and return what came."""
    for _ in range(ATTEMPTS):
        token_ids: list[int] = []
        logprobs: list[float] = []
        killed = ""
        async for event in client.generate(
            PROMPTS[0],
            sampling=Sampling(temperature=0.0, logprobs=0),
            stop=Stop(max_tokens=STRUCK_TOKENS, ignore_eos=True),
        ):
            if isinstance(event, Tokens):
                token_ids += event.token_ids
                logprobs += [token.logprob for token in event.logprobs]
                if len(token_ids) > 15 and not killed:
                    running = [worker for worker in (await snapshot(client)).workers if worker.running]
                    killed = running[0].worker_id if running else ""
                    if killed:
                        fleet.process(killed).kill()
        if killed:
            return Answer(tuple(token_ids), tuple(logprobs), 0)
    raise AssertionError("each stream had ended before it was known where it ran")
