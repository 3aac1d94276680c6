"""A fleet with LoRA adapters: each request has its own, on workers that have it, with the right tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from baton import AsyncClient, Sampling, Stop
from baton.errors import InvalidRequest
from baton.fleet import Fleet
from tests.adapters import merge, write_adapter
from tests.fleet.driving import EXACT, TRIES
from tests.fleets import DEMO_MODEL, NewFleet
from tests.model_zoo import stock_generate
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

LENGTH = 24
GREEDY, STOP = Sampling(temperature=0.0), Stop(max_tokens=LENGTH, ignore_eos=True)
TEXT = "def mean(values):\n    total = sum(values)\n    return total / len(values)\n\n\n"
EVERYWHERE, ONLY_ON_DECODE_1 = ("red", "blue"), "green"


class Adapted:
    """A fleet, and the checkpoints that its adapters amount to."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self.fleet = fleet
        self._folder = folder

    def expected(self, adapter: str, prompt: tuple[int, ...]) -> list[int]:
        directory = DEMO_MODEL
        if adapter:
            directory = merge(DEMO_MODEL, self._folder / adapter, self._folder / f"merged-{adapter}")
        return stock_generate(directory, list(prompt), LENGTH).tokens


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def adapted(new_fleet: NewFleet, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Adapted]:
    folder = tmp_path_factory.mktemp("adapters")
    paths = {
        name: write_adapter(DEMO_MODEL, folder / name, seed=seed, rank=rank)
        for name, seed, rank in (("red", 1, 4), ("blue", 2, 8), ("green", 3, 2))
    }
    async with new_fleet(
        decode=2,
        gateways=1,
        placement="disaggregated",
        lora=[f"{name}={paths[name]}" for name in EVERYWHERE],
        extra_args={
            "prefill": (*EXACT, "--lora", f"green={paths['green']}"),
            "decode-0": EXACT,
            "decode-1": (*EXACT, "--lora", f"green={paths['green']}"),
        },
    ) as fleet:
        yield Adapted(fleet, folder)


async def test_requests_of_all_adapters_run_side_by_side(adapted: Adapted) -> None:
    """Twice, so that the second time each adapter finds blocks of its own in the prefix caches."""
    names = ["", "red", "blue", "green"] * 3
    async with AsyncClient(adapted.fleet.router_addresses) as client:
        prompts = [await client.count_tokens(TEXT[7 * (place % 2) :]) for place in range(len(names))]
        for _ in range(2):
            completions = await asyncio.gather(
                *(
                    client.complete(prompt, sampling=GREEDY, stop=STOP, adapter=name)
                    for prompt, name in zip(prompts, names, strict=True)
                )
            )
            for completion, prompt, name in zip(completions, prompts, names, strict=True):
                (choice,) = completion.choices
                assert list(choice.token_ids) == adapted.expected(name, prompt), name
    outputs = {tuple(adapted.expected(name, prompts[0])) for name in names}
    assert len(outputs) == 4


async def test_cached_prefixes_are_found_within_an_adapter_only(adapted: Adapted) -> None:
    async with AsyncClient(adapted.fleet.router_addresses) as client:
        for number in range(TRIES):
            text = f"class Nobody{number}:\n    said = 'this before'\n"
            prompt = await client.count_tokens(f"{number}" * 16 + text * 3)
            cached: list[int] = []
            attempts: list[int] = []
            for name in ("", "red", "blue", "red", ""):
                completion = await client.complete(prompt, sampling=GREEDY, stop=STOP, adapter=name)
                cached.append(completion.finished.usage.cached_prompt_tokens)
                attempts.append(completion.finished.usage.attempts)
                assert list(completion.choices[0].token_ids) == adapted.expected(name, prompt)
            if max(attempts) == 1:  # a later attempt finds blocks that an earlier one has computed
                break
    full_blocks = (len(prompt) - 1) // 16 * 16
    assert cached == [0, 0, 0, full_blocks, full_blocks]


async def test_an_unknown_adapter_is_refused_with_those_there_are(adapted: Adapted) -> None:
    async with AsyncClient(adapted.fleet.router_addresses) as client:
        (model,) = await client.models()
        assert model.adapters == ("blue", "green", "red")
        with pytest.raises(InvalidRequest) as refused:
            await client.complete(TEXT, adapter="pink")
    sentence = "adapter is 'pink'; accepted: 'blue', 'green', 'red', or leave it empty"
    assert str(refused.value) == sentence


async def test_http_clients_name_an_adapter_behind_the_model(adapted: Adapted) -> None:
    base = DEMO_MODEL.name
    body: dict[str, Any] = {
        "prompt": TEXT,
        "temperature": 0,
        "max_tokens": LENGTH,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    async with httpx.AsyncClient(base_url=adapted.fleet.gateway_urls[0], timeout=PATIENCE_S) as http:
        listed = (await http.get("/v1/models")).json()["data"]
        assert [model["id"] for model in listed] == [base, f"{base}:blue", f"{base}:green", f"{base}:red"]
        assert listed[1]["parent"] == base
        found = {
            name: (await http.post("/v1/completions", json=body | {"model": name})).json()
            for name in (base, f"{base}:red")
        }
        wrong = await http.post("/v1/completions", json=body | {"model": f"{base}:pink"})
    for name, response in found.items():
        assert response["model"] == name
        (choice,) = response["choices"]
        prompt = tuple(choice["prompt_token_ids"])
        assert choice["token_ids"] == adapted.expected(name.partition(":")[2], prompt)
    assert wrong.status_code == 404
    message = wrong.json()["error"]["message"]
    accepted = ", ".join(repr(model["id"]) for model in listed)
    assert message == f"model is '{base}:pink'; accepted: {accepted}, which are served here"
