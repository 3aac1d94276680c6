"""Several fleets behind one gateway, each under the names of its model: one that is away harms no other."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from baton import AsyncClient, Stop
from baton.errors import NotFound
from baton.fleet import Fleet
from tests.fleet.driving import until
from tests.fleets import DEMO_MODEL, NewFleet
from tests.gateway.batches import CHATS, ended, line, results, start
from tests.gateway.running import Gateway, running_gateway
from tests.patience import PATIENCE_S
from tests.redis_server import redis_server
from tools.house.source_tree import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

FIRST, SECOND = "demo_model", "second_model"
NAMES = ("claude-sonnet-5", "gpt-5-codex")
"""Further names of the first fleet's model."""
HELLO = [{"role": "user", "content": "How do I read a file?"}]
CHAT: dict[str, Any] = {"messages": HELLO, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
SHORT = Stop(max_tokens=2, ignore_eos=True)


@dataclass(frozen=True)
class Served:
    first: Fleet
    second: Fleet
    gateway: Gateway
    client: Any
    """`openai.AsyncOpenAI`, whose overloads a dictionary of arguments does not fit."""

    async def ask(self, model: str, **fields: Any) -> httpx.Response:
        return await self.gateway.http.post(CHATS, json=CHAT | {"model": model} | fields)

    async def listed(self) -> list[str]:
        return [model["id"] for model in (await self.gateway.http.get("/v1/models")).json()["data"]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(new_fleet: NewFleet, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    second_model = tmp_path_factory.mktemp("models") / SECOND
    shutil.copytree(DEMO_MODEL, second_model)
    timed: dict[str, Any] = {"timed": "demo-cpu", "prefill": 0}
    with redis_server() as redis:
        async with (
            new_fleet(**timed, routers=2, served_model_names=NAMES) as first,
            new_fleet(**timed, model=second_model) as second,
            running_gateway(
                first.router_addresses, "--fleet", ",".join(second.router_addresses), "--redis", redis.url
            ) as gateway,
            openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0) as client,
        ):
            yield Served(first, second, gateway, client)


async def num_finished(fleet: Fleet) -> int:
    """Return how many requests the routers of a fleet have finished."""
    counted = 0
    for address in fleet.router_addresses:
        async with AsyncClient(address) as client:
            counted += (await anext(client.watch())).counters.finished
    return counted


async def test_every_name_is_listed_and_served_by_its_fleet(served: Served) -> None:
    models = [model async for model in await served.client.models.list()]
    assert [model.id for model in models] == [FIRST, *NAMES, SECOND]
    assert [getattr(model, "root", None) for model in models] == [None, FIRST, FIRST, None]
    for model in models:
        fleet = served.second if model.id == SECOND else served.first
        before = await num_finished(fleet)
        chat = await served.client.chat.completions.create(model=model.id, messages=HELLO, max_tokens=4)
        assert chat.model == model.id
        assert await num_finished(fleet) == before + 1
        assert (await served.client.models.retrieve(model.id)).id == model.id


async def test_a_name_that_no_fleet_has_is_404_and_so_is_none(served: Served) -> None:
    for name in ("claude", ""):
        response = await served.ask(name)
        error = response.json()["error"]
        assert (response.status_code, error["param"], error["code"]) == (404, "model", "model_not_found")
        names = ", ".join(map(repr, [FIRST, *NAMES, SECOND]))
        assert error["message"] == f"model is {name!r}; accepted: {names}, which are served here"


async def test_routers_take_the_names_of_their_own_model(served: Served) -> None:
    for address in served.first.router_addresses:
        for name in (FIRST, *NAMES):
            async with AsyncClient(address, model=name) as client:
                assert (await client.complete("The list is", stop=SHORT)).finished.usage.output_tokens == 2
                assert (await client.models())[0].more_names == NAMES
        async with AsyncClient(address, model=SECOND) as stranger:
            with pytest.raises(NotFound, match="accepted: 'demo_model', 'claude-sonnet-5', 'gpt-5-codex'"):
                await stranger.complete("The list is", stop=SHORT)


async def test_a_response_goes_on_with_the_model_of_another_fleet(served: Served) -> None:
    asked: dict[str, Any] = {"input": "How do I read a file?", "max_output_tokens": 4, "store": True}
    begun = await served.client.responses.create(model=NAMES[0], **asked)
    after = await served.client.responses.create(model=SECOND, previous_response_id=begun.id, **asked)
    assert (begun.model, after.model) == (NAMES[0], SECOND)
    assert (await served.client.responses.retrieve(after.id)).output == after.output
    running = await served.client.responses.create(
        model=SECOND, stream=True, **asked | {"max_output_tokens": 3000}, extra_body={"ignore_eos": True}
    )
    async for event in running:
        if event.type == "response.created":
            await served.client.responses.cancel(event.response.id)
    assert event.type == "response.failed", event


async def test_a_batch_may_name_models_of_several_fleets(served: Served) -> None:
    names = [FIRST, SECOND, *NAMES]
    batch = await start(served.client, [line(name, model=name) for name in names])
    batch = await ended(served.client, batch)
    found = await results(served.client, batch.output_file_id)
    assert sorted(row["response"]["body"]["model"] for row in found) == sorted(names), batch
    with pytest.raises(openai.BadRequestError, match=r"body\.model is ''; accepted: 'demo_model'"):
        await start(served.client, [line("a")])


async def test_viewers_look_at_the_fleet_of_a_model(served: Served) -> None:
    for name, shown in ((NAMES[1], FIRST), (SECOND, SECOND)):
        path = f"/page/fleet?model={name}"
        async with served.gateway.http.stream("GET", path) as response, asyncio.timeout(PATIENCE_S):
            lines = response.aiter_lines()
            assert await anext(lines) == "event: facts"
            assert json.loads((await anext(lines)).removeprefix("data: "))["model_name"] == shown


async def test_a_fleet_that_is_killed_fails_its_own_requests_alone(served: Served) -> None:
    streaming = await served.client.chat.completions.create(
        model=NAMES[0], messages=HELLO, max_tokens=1000, stream=True, extra_body={"ignore_eos": True}
    )
    await anext(aiter(streaming))
    own = [line(str(n), model=SECOND, max_tokens=400, ignore_eos=True) for n in range(8)]
    waiting = await start(served.client, own)
    served.second.process("router-0").kill()
    await served.second.next_death()
    assert await served.listed() == [FIRST, *NAMES]
    for response in (await served.ask(SECOND), await served.gateway.http.get(f"/v1/models/{SECOND}")):
        assert (response.status_code, response.json()["error"]["code"]) == (503, "unavailable")
        assert response.headers["retry-after"]
    assert (await served.ask("claude")).status_code == 404
    assert (await served.gateway.http.get("/health")).json() == {"status": "ok", "model": FIRST}
    for name in (FIRST, *NAMES):
        assert (await served.ask(name)).json()["model"] == name
    others = await ended(served.client, await start(served.client, [line("a", model=FIRST)]))
    assert others.request_counts.completed == 1
    assert [chunk async for chunk in streaming][-1].choices[0].finish_reason == "length"
    assert (await served.client.batches.retrieve(waiting.id)).status == "in_progress"
    await served.second.revive("router-0")
    assert (await ended(served.client, waiting)).request_counts.completed == len(own)

    async def is_back() -> bool:
        return (await served.ask(SECOND)).status_code == 200

    await until(is_back, "the second fleet serves again")


async def test_a_fleet_that_stands_still_delays_no_other(served: Served) -> None:
    router = served.second.process("router-0")
    router.pause()
    try:
        async with asyncio.timeout(PATIENCE_S / 4):  # its own requests wait for it for half a minute
            assert await served.listed() == [FIRST, *NAMES]
            assert (await served.gateway.http.get("/health")).status_code == 200
            assert (await served.ask("claude")).status_code == 404
            assert (await served.ask(NAMES[0])).json()["model"] == NAMES[0]
    finally:
        router.resume()
    assert (await served.ask(SECOND)).json()["model"] == SECOND


async def test_two_fleets_with_one_name_are_refused_at_the_start(served: Served) -> None:
    one, other = served.first.router_addresses
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "--listen", "127.0.0.1:0", "--fleet", one, "--fleet", other),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PATIENCE_S):
        _, said = await process.communicate()
    assert process.returncode == 2
    assert f"which the fleets of {one} and of {other} serve" in said.decode()
