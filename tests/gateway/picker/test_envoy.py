"""A fleet's gateways behind a real Envoy, which asks the endpoint picker for each request."""

from __future__ import annotations

import asyncio
import json
import math
import uuid
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from baton import AsyncClient
from baton.fleet import Fleet
from benchmarks.doors.observe import scrape
from tests.fleet.driving import assert_all_is_freed, until
from tests.fleets import NewFleet
from tests.forked import ForkedProcess
from tests.gateway.picker.running import Envoy, Picker, running_envoy, running_picker
from tests.gateway.running import Gateway, running_gateway
from tests.ports import free_port

pytestmark = [pytest.mark.integration, pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]

TEXT, MODELS = "/v1/completions", "/v1/models"
LONG = {"prompt": "The list is", "max_tokens": 200, "temperature": 0, "ignore_eos": True, "stream": True}
NUM_STREAMS = 8
ATTEMPTS = 5
"""On a busy machine streams may have ended before something is killed; then others are started."""
LIMITS_MS = (1, 60_000)
"""A time to the first token that no fleet meets, and one that every fleet meets."""


@dataclass
class Behind:
    """Gateways and a picker behind one Envoy."""

    fleet: Fleet
    gateways: list[Gateway]
    picker: Picker
    envoy: Envoy


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(new_fleet: NewFleet) -> AsyncIterator[Fleet]:
    # Streams are compared that ran in batches of other sizes, whose sums a processor may round otherwise.
    async with new_fleet(prefill=0, deterministic=True) as fleet:
        yield fleet


@pytest_asyncio.fixture(
    loop_scope="module", params=[pytest.param("override_host", marks=pytest.mark.long), "original_dst"]
)
async def behind(fleet: Fleet, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Behind]:
    async with AsyncExitStack() as stack:
        routers = fleet.router_addresses
        gateways = [await stack.enter_async_context(running_gateway(routers)) for _ in range(2)]
        addresses = [gateway.url.removeprefix("http://") for gateway in gateways]
        listen = f"127.0.0.1:{free_port()}"
        picker = await stack.enter_async_context(running_picker(addresses, routers, listen=listen))
        envoy = await stack.enter_async_context(
            running_envoy(request.param, tmp_path, picker.address, addresses)
        )
        behind = Behind(fleet, gateways, picker, envoy)
        await until(lambda: both_serve(behind), "both gateways serve")
        yield behind


async def serves(envoy: Envoy) -> bool:
    return (await envoy.http.get(MODELS)).status_code == 200


async def both_serve(behind: Behind) -> bool:
    """Send requests through Envoy, and return whether each gateway has had one."""
    for _ in behind.gateways:
        await serves(behind.envoy)
    return all([await has_served(gateway) for gateway in behind.gateways])


async def has_served(gateway: Gateway) -> bool:
    return any(
        sample.name == "baton_http_requests_total" and sample.labels["endpoint"] == MODELS
        for sample in await scrape(gateway.metrics)
    )


async def streamed(
    http: httpx.AsyncClient, headers: dict[str, str] | None = None, started: asyncio.Event | None = None
) -> list[bytes]:
    """Return the events of a stream but for comments; set `started` with the first of them."""
    received = b""
    async with http.stream("POST", TEXT, json=LONG, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        async for part in response.aiter_raw():
            received += part
            if started is not None and b"data: {" in received:
                started.set()
    return [event for event in received.split(b"\n\n") if not event.startswith(b":")]


async def streaming(behind: Behind) -> list[tuple[dict[str, str], asyncio.Task[list[bytes]]]]:
    """Return streams that have begun, each with the headers to send it again."""
    calls, begun = [], []
    for _ in range(NUM_STREAMS):
        begun.append(asyncio.Event())
        keyed = {"idempotency-key": str(uuid.uuid4())}
        calls.append((keyed, asyncio.create_task(streamed(behind.envoy.http, keyed, begun[-1]))))
    await asyncio.gather(*(event.wait() for event in begun))
    return calls


def text_of(events: list[bytes]) -> str:
    assert events[-2:] == [b"data: [DONE]", b""]
    chunks = [json.loads(event[6:]) for event in events if event.startswith(b"data: {")]
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


async def test_streams_and_answers_are_those_of_a_gateway(behind: Behind) -> None:
    direct = await streamed(behind.gateways[0].http)
    through = await asyncio.gather(*(streamed(behind.envoy.http) for _ in range(NUM_STREAMS)))
    assert {text_of(events) for events in through} == {text_of(direct)}
    whole = LONG | {"stream": False}
    answers = [await http.post(TEXT, json=whole) for http in (behind.envoy.http, behind.gateways[0].http)]
    assert {answer.json()["choices"][0]["text"] for answer in answers} == {text_of(direct)}
    wrong, directly = [
        await http.post(TEXT, content=b"{") for http in (behind.envoy.http, behind.gateways[0].http)
    ]
    assert (wrong.status_code, wrong.json()) == (400, directly.json())
    refused = await behind.envoy.http.post(TEXT, json=LONG | {"prompt": [1] * 100_000})
    assert refused.json()["error"]["code"] == "prompt_too_long"


async def test_what_the_fleet_would_refuse_is_refused_at_once(behind: Behind) -> None:
    endless = LONG | {"max_tokens": 3000, "stream": False}
    busy = [asyncio.create_task(behind.envoy.http.post(TEXT, json=endless)) for _ in range(5 * NUM_STREAMS)]
    refused: list[httpx.Response] = []
    # What is refused at once lies between a limit that no idle fleet meets and one that this fleet meets.
    impossible, met = LIMITS_MS

    async def is_refused() -> bool:
        nonlocal impossible, met
        limit = round(math.sqrt(impossible * met))
        asked = {"prompt": "word " * 200, "max_tokens": 8, "slo": {"ttft_ms": limit}}
        answer = await behind.envoy.http.post(TEXT, json=asked)
        # Envoy adds this header to what a gateway sends. One refuses where the picker's quote was still kept.
        if answer.status_code == 429 and "x-envoy-upstream-service-time" not in answer.headers:
            refused.append(answer)
            assert answer.json()["error"]["attainable"]["ttft_ms"] > limit
        elif answer.status_code == 400:
            impossible = limit
        elif answer.status_code == 200:
            met = limit
        if met < 1.02 * impossible:  # the fleet's load has changed meanwhile
            impossible, met = LIMITS_MS
        return bool(refused)

    await until(is_refused, "the picker refuses, since the fleet is too busy for the SLO")
    for call in busy:
        call.cancel()
    await asyncio.gather(*busy, return_exceptions=True)
    error = refused[0].json()["error"]
    assert error["code"] == "slo_refused"
    assert int(refused[0].headers["retry-after-ms"]) == error["retry_after_ms"]


async def test_quick_responses_are_whole(behind: Behind) -> None:
    whole = {(await answer).content for gateway in behind.gateways for answer in quick(gateway.http)}
    for _ in range(10):
        answers = await asyncio.gather(*(call for _ in range(20) for call in quick(behind.envoy.http)))
        assert [answer.status_code for answer in answers] == 20 * [200, 400]
        assert {answer.content for answer in answers} <= whole


def quick(http: httpx.AsyncClient) -> list[Coroutine[Any, Any, httpx.Response]]:
    """Return calls that a gateway responds to as soon as it has them."""
    return [http.get("/v1/models"), http.post(TEXT, content=b"{")]


async def test_streams_of_a_killed_gateway_can_be_sent_again(behind: Behind) -> None:
    expected = text_of(await streamed(behind.envoy.http))
    async with AsyncExitStack() as stack:
        for _ in range(ATTEMPTS):
            calls = await streaming(behind)
            await kill(behind.gateways[0].process)
            broken = 0
            for keyed, call in calls:
                try:
                    events = await call
                except httpx.RemoteProtocolError:
                    broken += 1
                    events = await streamed(behind.envoy.http, keyed)
                assert text_of(events) == expected
            later = await asyncio.gather(*(streamed(behind.envoy.http) for _ in range(NUM_STREAMS)))
            assert {text_of(events) for events in later} == {expected}
            if 0 < broken < NUM_STREAMS:
                return
            listen = ("--listen", behind.gateways[0].url.removeprefix("http://"))
            gateway = running_gateway(behind.fleet.router_addresses, *listen)
            behind.gateways[0] = await stack.enter_async_context(gateway)
            await until(lambda: both_serve(behind), "both gateways serve")
    raise AssertionError("each time the streams had ended before the gateway")


@pytest.mark.parametrize("behind", ["original_dst"], indirect=True)
async def test_streams_past_a_killed_picker_go_on(behind: Behind) -> None:
    expected = text_of(await streamed(behind.envoy.http))
    calls = await streaming(behind)
    await kill(behind.picker.process)
    assert {text_of(await call) for _, call in calls} == {expected}
    async with another_picker(behind):
        assert text_of(await streamed(behind.envoy.http)) == expected
    await assert_fleet_is_free(behind)


@pytest.mark.parametrize("behind", ["override_host"], indirect=True)
async def test_streams_through_a_killed_picker_can_be_sent_again(behind: Behind) -> None:
    expected, broken = text_of(await streamed(behind.envoy.http)), 0
    async with AsyncExitStack() as stack:
        for _ in range(ATTEMPTS):
            calls = await streaming(behind)
            await kill(behind.picker.process)
            for ended in await asyncio.gather(*(call for _, call in calls), return_exceptions=True):
                if isinstance(ended, list):
                    assert text_of(ended) == expected
                else:
                    assert isinstance(ended, httpx.RemoteProtocolError), ended
                    broken += 1
            behind.picker = await stack.enter_async_context(another_picker(behind))
            again = await asyncio.gather(*(streamed(behind.envoy.http, keyed) for keyed, _ in calls))
            assert {text_of(events) for events in again} == {expected}
            if broken:
                break
        assert broken, "each time the streams had ended before the picker"
        await assert_fleet_is_free(behind)


async def kill(process: ForkedProcess) -> None:
    process.kill()
    await asyncio.to_thread(process.wait)


@asynccontextmanager
async def another_picker(behind: Behind) -> AsyncIterator[Picker]:
    """Run a picker at the address of the killed one, without which Envoy serves nobody."""
    assert (await behind.envoy.http.get(MODELS)).status_code >= 500
    addresses = [gateway.url.removeprefix("http://") for gateway in behind.gateways]
    routers, listen = behind.fleet.router_addresses, behind.picker.address
    async with running_picker(addresses, routers, listen=listen) as picker:
        await until(lambda: serves(behind.envoy), "another picker takes over")
        yield picker


async def assert_fleet_is_free(behind: Behind) -> None:
    async with AsyncClient(behind.fleet.router_addresses) as client:
        await assert_all_is_freed(behind.fleet, client)
