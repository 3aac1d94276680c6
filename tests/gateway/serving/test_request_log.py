"""Requests that a gateway counts and logs, and its drain."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import httpx
import pytest
import pytest_asyncio

from benchmarks.doors.observe import scrape
from tests.baton.scripted_service import (
    HANG,
    WHOLE,
    Fail,
    ScriptedRouter,
    Wait,
    accepted,
    ended,
    finished,
    queued,
    tokens,
)
from tests.gateway.running import Gateway, running_gateway
from tests.gateway.test_openai_requests import HELLO, MODEL
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT = "/v1/chat/completions"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def router() -> AsyncIterator[ScriptedRouter]:
    async with ScriptedRouter(ListModels=MODEL) as scripted:
        yield scripted


async def until_counted(gateway: Gateway, name: str, value: float, **labels: str) -> None:
    """Wait for a metric: it counts once a request is over, which its caller may see before."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            samples = await scrape(gateway.metrics)
            found = sum(
                sample.value
                for sample in samples
                if sample.name == f"baton_http_{name}" and labels.items() <= sample.labels.items()
            )
            if found == value:
                return
            await asyncio.sleep(0.02)


async def test_requests_streams_tokens_and_callers_who_leave_are_counted(router: ScriptedRouter) -> None:
    async with running_gateway([router.address]) as gateway:
        router.scripts[:] = [WHOLE]
        for stream in (False, True):
            await gateway.http.post(CHAT, json={"messages": HELLO, "stream": stream})
        await gateway.http.post(CHAT, json={})
        await gateway.http.post("/v1/messages", json={"messages": HELLO, "max_tokens": 4, "stream": True})
        for path in ("/nope/1", "/nope/2"):
            await gateway.http.get(path)
        await until_counted(gateway, "requests_total", 2, endpoint=CHAT, status="200")
        await until_counted(gateway, "requests_total", 1, endpoint=CHAT, status="400")
        await until_counted(gateway, "requests_total", 2, endpoint="other", status="404")
        await until_counted(gateway, "relayed_tokens_total", 7, endpoint=CHAT)
        await until_counted(gateway, "ttft_seconds_count", 1, endpoint=CHAT)
        await until_counted(gateway, "ttft_seconds_count", 1, endpoint="/v1/messages")
        router.scripts[:] = [(accepted(), queued(), HANG)]
        asking = gateway.http.stream("POST", CHAT, json={"messages": HELLO, "stream": True})
        async with asking as response:
            # A generator of lines that nobody holds would close the connection.
            lines = response.aiter_lines()
            await anext(lines)
            await until_counted(gateway, "open_streams", 1)
        await until_counted(gateway, "disconnects_total", 1, endpoint=CHAT)
        await until_counted(gateway, "open_streams", 0)
        await until_counted(gateway, "open_requests", 0)


async def test_a_request_is_one_line_of_the_log_without_its_prompt(
    router: ScriptedRouter, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    router.scripts[:] = [WHOLE]
    secret = [{"role": "user", "content": "the secret"}]
    async with running_gateway([router.address], log=path) as gateway:
        await gateway.http.post(CHAT, json={"messages": secret, "stream": True})
        await gateway.http.get("/health")
        await gateway.http.post(CHAT, json={"messages": secret, "user": 5})
    log = path.read_text()
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    served, refused = [line for line in lines if line["event"] == "request"]
    assert (served["path"], served["status"], served["tokens"], served["request_id"]) == (CHAT, 200, 3, "r")
    assert served["ms"] >= served["ttft_ms"] > 0
    assert (refused["status"], refused["left"]) == (400, False)
    assert "secret" not in log


async def test_a_failure_of_the_fleet_is_logged_but_not_told(router: ScriptedRouter, tmp_path: Path) -> None:
    path = tmp_path / "log"
    why = Fail(grpc.StatusCode.DATA_LOSS, "what only operators read")
    async with running_gateway([router.address], log=path) as gateway:
        router.scripts[:] = [(why,)]
        refused = await gateway.http.post(CHAT, json={"messages": HELLO})
        router.scripts[:] = [(accepted(), tokens(0, 10), why)]
        broken = await gateway.http.post(CHAT, json={"messages": HELLO, "stream": True})
    log = path.read_text()
    assert why.message not in refused.text + broken.text
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    told = [line["failed_with"] for line in lines if line["event"] == "request"]
    assert told == [f"DATA_LOSS: {why.message}"] * 2


async def test_a_drained_gateway_ends_its_streams_and_takes_no_others(router: ScriptedRouter) -> None:
    go_on = asyncio.Event()
    router.scripts[:] = [(accepted(), tokens(0, 10), Wait(go_on), tokens(1, 11), ended(2), finished())]
    async with running_gateway([router.address]) as gateway:
        asking = gateway.http.stream("POST", CHAT, json={"messages": HELLO, "stream": True})
        async with asking as response:
            lines = response.aiter_lines()
            while "<10>" not in await anext(lines):
                pass
            gateway.process.terminate()
            async with httpx.AsyncClient() as other, asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        await other.get(f"{gateway.url}/health")
                    except httpx.TransportError:
                        break
            go_on.set()
            rest = [line async for line in lines]
        assert "data: [DONE]" in rest
        assert await asyncio.to_thread(gateway.process.wait) == 0
