"""A fleet with a gateway of its own, under `Keeper`: HTTP clients lose nothing when its processes change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
import redis.asyncio

from baton.fleet import Fleet, FleetEvent
from baton.fleet.processes.events import ProcessReplaced, ProcessRestarted
from tests.fleet.driving import TRIES, until
from tests.fleets import NewFleet, kept
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

HELLO = [{"role": "user", "content": "How do I read a file?"}]
CHAT = {"messages": HELLO, "max_tokens": 200, "temperature": 0, "ignore_eos": True}
LONG = 2000


@dataclass(frozen=True)
class Served:
    fleet: Fleet
    events: list[FleetEvent]
    http: httpx.AsyncClient


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(new_fleet: NewFleet) -> AsyncIterator[Served]:
    events: list[FleetEvent] = []
    async with (
        new_fleet(events.append, timed="demo-cpu", routers=2, prefill=0, gateways=2) as fleet,
        kept(fleet, events.append),
        httpx.AsyncClient(base_url=fleet.gateway_urls[0], timeout=PATIENCE_S) as http,
    ):
        yield Served(fleet, events, http)


async def chat(http: httpx.AsyncClient, started: asyncio.Event | None = None, **fields: int) -> str:
    """Stream a chat to its end and return its text; set `started` with its first words."""
    text, body = "", CHAT | {"stream": True} | fields
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = [line async for line in _heard(response, started)]
    assert lines[-1] == "[DONE]"
    for chunk in map(json.loads, lines[:-1]):
        assert "error" not in chunk, chunk
        text += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
    return text


async def _heard(response: httpx.Response, started: asyncio.Event | None) -> AsyncIterator[str]:
    assert response.status_code == 200, await response.aread()
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield line.removeprefix("data: ")
            if started is not None and '"content"' in line:
                started.set()


async def test_it_serves_once_the_fleet_is_up(served: Served) -> None:
    health = await served.http.get("/health")
    assert (health.status_code, health.json()["model"]) == (200, "demo_model")
    whole = (await served.http.post("/v1/chat/completions", json=CHAT)).json()
    assert whole["choices"][0]["message"]["content"] == await chat(served.http)


async def test_streams_go_on_while_everything_is_replaced(served: Served) -> None:
    expected, url = await chat(served.http), served.fleet.gateway_urls
    restarting = asyncio.create_task(served.fleet.restart())
    num_streams = 0
    while not restarting.done():
        started = asyncio.Event()
        try:
            assert await chat(served.http, started) == expected
        except httpx.TransportError:
            assert not started.is_set(), "cut off"  # nobody listens between a gateway and its successor
            await asyncio.sleep(0.05)
        else:
            num_streams += 1
    await restarting
    assert num_streams >= 2
    replaced = [event.name for event in served.events if isinstance(event, ProcessReplaced)]
    assert replaced == ["decode-0", "router-0", "router-1", "gateway-0", "gateway-1"]
    assert served.fleet.gateway_urls == url
    assert await chat(served.http) == expected


async def test_a_busy_fleet_refuses_with_an_slo_it_could_promise(served: Served) -> None:
    asked = {"prompt": "word " * 200, "max_tokens": 8}
    idle = await served.http.post("/v1/completions", json=asked | {"slo": {"ttft_ms": 60_000}})
    limit = round(2 * idle.json()["baton"]["promise"]["predicted_ttft_ms"])
    async with httpx.AsyncClient(base_url=served.fleet.gateway_urls[1], timeout=PATIENCE_S) as other:
        endless = {"prompt": "The list is", "max_tokens": 3000, "ignore_eos": True}
        busy = [asyncio.create_task(other.post("/v1/completions", json=endless)) for _ in range(100)]
        found: list[httpx.Response] = []

        async def refused() -> bool:
            body = asked | {"slo": {"ttft_ms": limit}, "stream": len(found) % 2 == 0}
            found.append(await served.http.post("/v1/completions", json=body))
            return [response.status_code for response in found[-2:]] == [429, 429]

        await until(refused, "the fleet is too busy for the SLO, whether streamed or not")
        for call in busy:
            call.cancel()
        await asyncio.wait(busy)
    for response in found[-2:]:
        error = response.json()["error"]
        assert (error["code"], error["param"]) == ("slo_refused", "slo")
        assert error["attainable"]["ttft_ms"] > limit
        assert int(response.headers["retry-after-ms"]) == error["retry_after_ms"]
        assert int(response.headers["retry-after"]) >= 1


async def test_a_gateway_that_leaves_finishes_its_streams(served: Served) -> None:
    expected, started = await chat(served.http), asyncio.Event()
    streaming = asyncio.create_task(chat(served.http, started))
    async with asyncio.timeout(PATIENCE_S):
        await started.wait()
    await served.fleet.replace("gateway-0")
    assert await streaming == expected


async def test_streams_of_two_gateways_outlive_a_router(served: Served) -> None:
    # Long enough that all run at once, however busy the machine is.
    expected = await chat(served.http, max_tokens=LONG)
    async with httpx.AsyncClient(base_url=served.fleet.gateway_urls[1], timeout=PATIENCE_S) as other:
        callers = (served.http, served.http, other, other)  # each gateway takes the routers in turn
        for _ in range(TRIES):
            begun = [asyncio.Event() for _ in callers]
            streams = [
                asyncio.create_task(chat(http, started, max_tokens=LONG))
                for http, started in zip(callers, begun, strict=True)
            ]
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*(started.wait() for started in begun))
            all_run = not any(stream.done() for stream in streams)
            if all_run:
                await kill(served, "router-0")
            assert await asyncio.gather(*streams) == [expected] * len(callers)
            if all_run:
                break
        else:
            raise AssertionError("each time a stream had ended before all had begun")
    started = asyncio.Event()
    streaming = asyncio.create_task(chat(served.http, started))
    async with asyncio.timeout(PATIENCE_S):
        await started.wait()
    await kill(served, "gateway-1")
    assert await streaming == await chat(served.http)


async def test_a_killed_gateway_returns_at_its_address(served: Served) -> None:
    urls = served.fleet.gateway_urls
    await kill(served, "gateway-0")
    assert served.fleet.gateway_urls == urls

    async def is_healthy() -> bool:
        return (await served.http.get("/health")).status_code == 200

    await until(is_healthy, "the gateway is healthy")


async def test_a_stored_response_outlives_redis_and_its_gateway(served: Served) -> None:
    body = {"input": "How do I read a file?", "max_output_tokens": 4, "store": True}
    kept = (await served.http.post("/v1/responses", json=body)).json()
    for name in ("redis-gateway", "gateway-0"):
        await kill(served, name)

    async def found() -> bool:
        response = await served.http.get(f"/v1/responses/{kept['id']}")
        assert response.status_code in {200, 503}, response.text
        return response.status_code == 200 and bool(response.json() == kept)

    await until(found, "the response is there again")


async def test_a_full_redis_of_gateways_costs_only_what_is_stored(served: Served) -> None:
    body = {"input": "How do I read a file?", "max_output_tokens": 4}
    users = Path(served.fleet.process("redis-gateway").address).with_name("users.acl")
    users.write_text("user default on nopass ~* &* +@all\n", encoding="ascii")  # a fleet may set no limits
    await kill(served, "redis-gateway")
    async with redis.asyncio.from_url(served.fleet.gateway_redis_url) as client:
        before = str((await client.config_get("maxmemory"))["maxmemory"])
        await client.config_set("maxmemory", "1")
        try:
            stored = await served.http.post("/v1/responses", json={**body, "store": True})
            passing = await served.http.post("/v1/responses", json={**body, "store": False})
        finally:
            await client.config_set("maxmemory", before)
    assert (stored.status_code, passing.status_code) == (503, 200), stored.text
    assert (await served.http.post("/v1/responses", json={**body, "store": True})).status_code == 200


async def test_a_keyed_stream_is_had_again_after_its_connection_broke(served: Served) -> None:
    expected = await chat(served.http, asyncio.Event())
    headers = {"idempotency-key": "broken-off"}
    async with served.http.stream(
        "POST", "/v1/chat/completions", json=CHAT | {"stream": True}, headers=headers
    ) as had:
        async for line in had.aiter_lines():
            if '"content"' in line:
                break
    whole = await served.http.post("/v1/chat/completions", json=CHAT, headers=headers)
    assert whole.json()["choices"][0]["message"]["content"] == expected


async def kill(served: Served, name: str) -> None:
    """Kill a process, and wait until it is restarted."""
    num_before = served.events.count(ProcessRestarted(name))
    served.fleet.process(name).kill()

    async def restarted() -> bool:
        return served.events.count(ProcessRestarted(name)) > num_before

    await until(restarted, f"{name} is restarted")
