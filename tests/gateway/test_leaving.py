"""Callers who leave, do not read or only stay connected: nothing is leaked, and nobody else is disturbed."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from benchmarks.doors.observe import scrape, total
from tests.fleet.driving import assert_all_is_freed, until
from tests.fleets import NewFleet
from tests.gateway.running import Gateway, Served, running_timed
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 12, "ignore_eos": True, "stream": True}
ROUNDS, AT_ONCE = 1000, 20
MOST_GROWTH_BYTES = 16 << 20
CONNECTIONS = 1000


def resident_bytes(gateway: Gateway) -> int:
    """Return the memory of the gateway's process."""
    pages = Path(f"/proc/{gateway.process.pid}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


async def until_at_rest(gateway: Gateway, tasks: float) -> None:
    """Wait until the gateway has no request, and no more tasks than given."""

    async def is_at_rest() -> bool:
        samples = await scrape(gateway.metrics)
        open_requests = total(samples, "baton_http_open_requests")
        return open_requests == 0 and total(samples, "baton_event_loop_tasks") <= tasks

    await until(is_at_rest, "no open request and no task left")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(new_fleet: NewFleet) -> AsyncIterator[Served]:
    async with running_timed(new_fleet, "--log-level", "warning") as running:
        yield running


def request(body: dict[str, object]) -> bytes:
    content = json.dumps(body).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n%s" % (
        len(content),
        content,
    )


async def leave(served: Served, rng: random.Random) -> None:
    """Send a part of a request or all of it, read a part of the response or all, and drop the connection."""
    sent = request(CHAT | {"stream": rng.random() < 0.8})
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    try:
        writer.write(sent[: rng.randrange(len(sent))] if rng.random() < 0.2 else sent)
        await writer.drain()
        left = rng.choice((0, 1, rng.randrange(6000)))
        async with asyncio.timeout(rng.choice((0.001, 0.02, 0.2))):
            while left > 0:
                data = await reader.read(left)
                left -= len(data) if data else left
    except TimeoutError:
        pass
    finally:
        writer.transport.abort()


async def test_a_thousand_callers_who_leave_anywhere_leak_nothing(served: Served) -> None:
    rng = random.Random(1)

    async def some(rounds: int) -> None:
        for _ in range(rounds // AT_ONCE):
            await asyncio.gather(*(leave(served, rng) for _ in range(AT_ONCE)))
        await assert_all_is_freed(served.fleet, served.sdk)

    whole = CHAT | {"stream": False}
    expected = (await served.gateway.http.post("/v1/chat/completions", json=whole)).status_code
    assert expected == 200
    tasks = total(await scrape(served.gateway.metrics), "baton_event_loop_tasks")
    await some(ROUNDS // 5)
    await until_at_rest(served.gateway, tasks)
    before = resident_bytes(served.gateway)
    await some(ROUNDS)
    await until_at_rest(served.gateway, tasks)
    assert resident_bytes(served.gateway) - before < MOST_GROWTH_BYTES
    assert (await served.gateway.http.post("/v1/chat/completions", json=whole)).status_code == 200


async def test_a_caller_who_does_not_read_costs_bounded_memory(served: Served) -> None:
    with socket.socket() as caller:
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        caller.connect(("127.0.0.1", served.port))
        before = resident_bytes(served.gateway)
        unread = {"max_tokens": 1500, "n": 8, "logprobs": True, "top_logprobs": 20}
        await asyncio.to_thread(caller.sendall, request(CHAT | unread))

        async def is_running() -> bool:
            return total(await scrape(served.gateway.metrics), "baton_http_open_streams") == 1

        await until(is_running, "the stream has begun")
        neighbour = await served.gateway.http.post("/v1/chat/completions", json=CHAT)
        assert neighbour.text.endswith("data: [DONE]\n\n")
        await assert_all_is_freed(served.fleet, served.sdk)  # the router has given up, not the caller
        assert resident_bytes(served.gateway) - before < 4 * MOST_GROWTH_BYTES


async def test_a_thousand_idle_connections_disturb_nobody(served: Served) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * CONNECTIONS)), hard))
    writers = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(CONNECTIONS):
                _, writer = await asyncio.open_connection("127.0.0.1", served.port)
                writers.append(writer)
        answer = await served.gateway.http.post("/v1/chat/completions", json=CHAT)
        assert answer.text.endswith("data: [DONE]\n\n")
        open_now = total(await scrape(served.gateway.metrics), "baton_http_open_connections")
        assert open_now > CONNECTIONS
    finally:
        for writer in writers:
            writer.transport.abort()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    async def are_gone() -> bool:
        return total(await scrape(served.gateway.metrics), "baton_http_open_connections") < CONNECTIONS

    await until(are_gone, "closed connections are forgotten")
