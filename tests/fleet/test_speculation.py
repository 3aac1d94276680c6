"""A fleet whose decode worker verifies drafted tokens gives the same outputs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from baton import AsyncClient, Regex, Sampling, Stop
from baton.fleet import Fleet
from tests.fleet.driving import EXACT, metric, outputs
from tests.fleets import DEMO_MODEL, NewFleet
from tests.model_zoo import stock_generate

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

TEXT = "Return the number of items. Return the number of"
"""The demo model soon repeats itself behind it."""
LENGTH = 160


SETTINGS: dict[str, Any] = {"placement": "disaggregated", "extra_args": {"prefill": EXACT, "decode": EXACT}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(new_fleet: NewFleet) -> AsyncIterator[Fleet]:
    async with new_fleet(speculate="lookup", **SETTINGS) as fleet:
        yield fleet


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain(new_fleet: NewFleet) -> AsyncIterator[Fleet]:
    async with new_fleet(speculate="none", **SETTINGS) as fleet:
        yield fleet


async def test_greedy_outputs_are_those_of_stock_transformers(fleet: Fleet) -> None:
    num_accepted = 0.0
    async with AsyncClient(fleet.router_addresses) as client:
        stop = Stop(max_tokens=LENGTH, ignore_eos=True)
        prompt = await client.count_tokens(TEXT)
        expected = stock_generate(DEMO_MODEL, list(prompt), LENGTH).tokens
        # How many tokens are drafted depends on what steps cost on this machine. Where others disturbed the
        # measurement at the start, there may be none at first.
        while not num_accepted:
            completion = await client.complete(prompt, sampling=Sampling(temperature=0.0), stop=stop)
            (choice,) = completion.choices
            assert list(choice.token_ids) == expected
            num_accepted = await metric(fleet, "decode-0", "baton_accepted_draft_tokens_total")


@pytest.mark.parametrize(
    ("sampling", "output_format"),
    [
        (Sampling(temperature=0.8, seed=5, n=3), None),
        (Sampling(temperature=0.3, top_p=0.9, repetition_penalty=1.05, seed=6, n=2), None),
        (Sampling(temperature=0.5, seed=7, logprobs=2), None),
        (Sampling(temperature=2.0, seed=8, n=2), Regex(r"(ab|abc|bca){3,40}\.")),
    ],
)
async def test_random_outputs_are_the_same_token_by_token(
    fleet: Fleet, plain: Fleet, sampling: Sampling, output_format: Regex | None
) -> None:
    asked = TEXT, sampling, LENGTH // 2, output_format
    assert await outputs(fleet, *asked) == await outputs(plain, *asked)
