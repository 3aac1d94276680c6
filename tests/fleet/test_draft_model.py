"""A fleet whose decode workers draft with a smaller model gives the same outputs, whoever dies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from baton import AsyncClient, Regex, Sampling, Stop, Tokens
from baton.fleet import Fleet
from tests.deep_model import deepen
from tests.fleet.driving import EXACT, TRIES, busy_workers, labelled, metric, outputs
from tests.fleets import DEMO_MODEL, NewFleet
from tests.model_zoo import stock_generate

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

LAYERS = 32
"""A step of the model takes about eight times as long as one of the draft model, so that drafts pay."""
LENGTH = 64
PROMPT = [3 + i % 90 for i in range(70)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deepen(DEMO_MODEL, tmp_path_factory.mktemp("deep"), LAYERS)


SETTINGS: dict[str, Any] = {"placement": "disaggregated", "extra_args": {"prefill": EXACT, "decode": EXACT}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(new_fleet: NewFleet, model: Path) -> AsyncIterator[Fleet]:
    async with new_fleet(model=model, decode=2, draft_model=DEMO_MODEL, **SETTINGS) as fleet:
        yield fleet


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain(new_fleet: NewFleet, model: Path) -> AsyncIterator[Fleet]:
    async with new_fleet(model=model, **SETTINGS) as fleet:
        yield fleet


async def num_accepted(fleet: Fleet) -> float:
    """Return how many tokens of the draft model became output, in all decode workers."""
    found = 0.0
    for name in ("decode-0", "decode-1"):
        by_drafter = await labelled(fleet, name, "baton_accepted_draft_tokens_total", "drafter")
        found += by_drafter.get("model", 0.0)
    return found


async def test_greedy_outputs_are_those_of_stock_transformers(fleet: Fleet, model: Path) -> None:
    expected = stock_generate(model, PROMPT, LENGTH).tokens
    is_drafted = False
    async with AsyncClient(fleet.router_addresses) as client:
        # How many tokens are drafted depends on what steps cost on this machine. Where others disturbed the
        # measurement at the start, there may be none at first.
        while not is_drafted:
            stop = Stop(max_tokens=LENGTH, ignore_eos=True)
            completion = await client.complete(PROMPT, sampling=Sampling(temperature=0.0), stop=stop)
            (choice,) = completion.choices
            assert list(choice.token_ids) == expected
            is_drafted = await num_accepted(fleet) > 0
    seconds = [await metric(fleet, name, "baton_drafting_seconds_total") for name in ("decode-0", "decode-1")]
    assert max(seconds) > 0


@pytest.mark.parametrize(
    ("sampling", "output_format"),
    [
        (Sampling(temperature=0.8, seed=5, n=3), None),
        (Sampling(temperature=0.3, top_p=0.9, repetition_penalty=1.05, seed=6, n=2), None),
        (Sampling(temperature=2.0, seed=8, n=2), Regex(r"(ab|abc|bca){3,40}\.")),
    ],
)
async def test_random_outputs_are_the_same_token_by_token(
    fleet: Fleet, plain: Fleet, sampling: Sampling, output_format: Regex | None
) -> None:
    asked = PROMPT, sampling, LENGTH // 2, output_format
    assert await outputs(fleet, *asked) == await outputs(plain, *asked)


@pytest.mark.long
async def test_a_stream_goes_on_with_the_same_tokens_where_its_worker_dies(
    fleet: Fleet, plain: Fleet
) -> None:
    """The worker that takes over computes the draft model's KV anew as well."""
    sampling, stop = Sampling(temperature=1.0, seed=3), Stop(max_tokens=4 * LENGTH, ignore_eos=True)
    async with AsyncClient(plain.router_addresses) as client:
        expected = await client.complete(PROMPT, sampling=sampling, stop=stop)
    struck: list[str] = []
    async with AsyncClient(fleet.router_addresses) as client:
        for _ in range(TRIES):  # it may end before it is known which worker runs it
            tokens: list[int] = []
            is_due = True
            async for event in client.generate(PROMPT, sampling=sampling, stop=stop):
                if isinstance(event, Tokens):
                    assert event.first_index == len(tokens)
                    tokens += event.token_ids
                if len(tokens) >= LENGTH and is_due:
                    is_due = False
                    struck = (await busy_workers(client))[:1]
                    for name in struck:
                        fleet.process(name).kill()
            assert tokens == list(expected.choices[0].token_ids)
            if struck:
                break
    assert struck
