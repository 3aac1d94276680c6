"""A deterministic fleet in fp32: the same bits on every path, in company, and after a death."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from baton import AsyncClient, Sampling, Stop, Tokens
from baton.fleet import FleetSpec
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import DEMO_MODEL, greedy, metric

pytestmark = pytest.mark.integration

PROMPTS = [[3 + (i * step) % 90 for i in range(length)] for step, length in ((1, 150), (7, 40), (11, 9))]
MAX_TOKENS = 160
"""So many that a client which lags still finds the first prompt running when it has come to know where."""
SPEC_ARGS = {
    "router-0": ("--placement", "disaggregated"),
    "router-1": ("--placement", "aggregated"),
    "prefill": ("--token-budget", "64"),
}


async def running_worker(client: AsyncClient) -> str:
    """The first that is known to have sequences."""
    async with aclosing(client.watch(0.1)) as snapshots:
        async for fleet in snapshots:
            for worker in fleet.workers:
                if worker.running:
                    return worker.worker_id
    raise AssertionError("the fleet is gone")


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
        token_ids: list[int] = []
        logprobs: list[float] = []
        killed = ""
        async for event in by_itself.generate(
            PROMPTS[0],
            sampling=Sampling(temperature=0.0, logprobs=0),
            stop=Stop(max_tokens=MAX_TOKENS, ignore_eos=True),
        ):
            if isinstance(event, Tokens):
                token_ids += event.token_ids
                logprobs += [token.logprob for token in event.logprobs]
                if len(token_ids) > 15 and not killed:
                    killed = await running_worker(by_itself)
                    fleet.process(killed).kill()
        assert killed
        assert (tuple(token_ids), tuple(logprobs)) == bits[0]
        assert [(entry.token_ids, entry.logprobs) for entry in await company] == bits[1:]

        # The worker that is left went on with the first prompt: its blocks are there.
        again = await greedy(by_itself, PROMPTS[:1], MAX_TOKENS)
        assert [(entry.token_ids, entry.logprobs) for entry in again] == bits[:1]
        assert again[0].cached_prompt_tokens > 0
