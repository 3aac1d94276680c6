"""The end of a gateway's drain time: streams end with their API's own error, whole calls with a 503."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from benchmarks.doors.observe import scrape, total
from tests.baton.scripted_service import HANG, ScriptedRouter, accepted, tokens
from tests.gateway.running import Gateway, running_gateway
from tests.gateway.test_openai_requests import HELLO, MODEL
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT, TEXT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
BODIES: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": HELLO}),
    (TEXT, {"prompt": "a"}),
    (TEXT, {"prompt": ["a", "b"]}),
    (MESSAGES, {"messages": HELLO, "max_tokens": 9}),
    (RESPONSES, {"input": "a"}),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def router() -> AsyncIterator[ScriptedRouter]:
    async with ScriptedRouter((accepted(), tokens(0, 10), HANG), ListModels=MODEL) as scripted:
        yield scripted


async def streamed(gateway: Gateway, path: str, body: dict[str, Any], begun: asyncio.Semaphore) -> list[str]:
    """Return the lines of a stream, after telling that it has a token."""
    async with gateway.http.stream("POST", path, json=body | {"stream": True}) as response:
        lines = []
        async for line in response.aiter_lines():
            lines.append(line)
            if "<10>" in line:
                begun.release()
    return [line for line in lines if line]


def last_error(path: str, lines: list[str]) -> dict[str, Any]:
    """Return the error at the end of a stream, in the shape that its API has."""
    last = json.loads(lines[-1].removeprefix("data: "))
    if path == MESSAGES:
        assert (lines[-2], last["type"]) == ("event: error", "error")
    elif path == RESPONSES:
        assert (lines[-2], last["type"]) == ("event: response.failed", "response.failed")
        last = last["response"]
    error: dict[str, Any] = last["error"]
    return error


async def end_in(gateway: Gateway, *, signals: int) -> tuple[list[list[str]], list[httpx.Response]]:
    """Return streams and whole responses that are open when the gateway is told to leave."""
    begun = asyncio.Semaphore(0)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        streams = [group.create_task(streamed(gateway, path, body, begun)) for path, body in BODIES]
        for _ in BODIES:
            await begun.acquire()
        whole = [group.create_task(gateway.http.post(path, json=body)) for path, body in BODIES]
        while (await open_requests(gateway)) < 2 * len(BODIES):
            await asyncio.sleep(0.02)
        for _ in range(signals):
            gateway.process.terminate()
            await asyncio.sleep(0.2)  # two signals at once are one
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.to_thread(gateway.process.wait) == 0
    return [task.result() for task in streams], [task.result() for task in whole]


async def open_requests(gateway: Gateway) -> float:
    return total(await scrape(gateway.metrics), "baton_http_open_requests")


@pytest.mark.parametrize(("drain_s", "signals"), [("1", 1), ("0", 1), ("600", 2)])
async def test_open_responses_end_with_an_error_of_their_api(
    router: ScriptedRouter, drain_s: str, signals: int
) -> None:
    async with running_gateway([router.address], "--drain-s", drain_s) as gateway:
        streams, whole = await end_in(gateway, signals=signals)
    for (path, _), lines in zip(BODIES, streams, strict=True):
        assert "the gateway leaves" in last_error(path, lines)["message"], (path, lines)
    for (path, _), response in zip(BODIES, whole, strict=True):
        assert (response.status_code, response.headers["retry-after"]) == (503, "1"), (path, response.text)
        assert "the gateway leaves" in response.json()["error"]["message"]
        assert ("type" in response.json()) == (path == MESSAGES)
