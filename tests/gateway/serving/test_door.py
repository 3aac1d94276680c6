"""A gateway settles before it reads a body who asks, from where, and whether there is room."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.baton.scripted_service import WHOLE, ScriptedRouter
from tests.gateway.running import Gateway, running_gateway
from tests.gateway.test_openai_requests import HELLO, MODEL
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
BODY = {"messages": HELLO, "max_tokens": 4}
FRIEND, STRANGER = "https://chat.example", "https://evil.example"
ROOM = ("--max-body-bytes", "200000", "--max-bodies-bytes", "531072")
"""Half of the room has one body of the largest size."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with (
        ScriptedRouter(WHOLE, ListModels=MODEL) as router,
        running_gateway(
            [router.address], "--allow-host", "gpu-1.example", "--allow-origin", FRIEND, *ROOM
        ) as running,
    ):
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain() -> AsyncIterator[Gateway]:
    """A gateway without flags."""
    async with (
        ScriptedRouter(WHOLE, ListModels=MODEL) as router,
        running_gateway([router.address]) as running,
    ):
        yield running


async def status(gateway: Gateway, path: str = CHAT, **headers: str) -> tuple[int, str | None]:
    """Return the status and code that a request with these headers gets."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response = await gateway.http.post(path, content=json.dumps(BODY), headers=named)
    found = response.json()
    assert ("type" in found) == (path == MESSAGES)
    return response.status_code, found.get("error", {}).get("code")


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_two_credentials_are_refused(plain: Gateway, path: str) -> None:
    for headers, expected in (
        ([("authorization", "Bearer a"), ("authorization", "Bearer a")], 400),
        ([("x-api-key", "a"), ("x-api-key", "b")], 400),
        ([("authorization", "Bearer a"), ("x-api-key", "b")], 400),
        ([("authorization", "Bearer a"), ("x-api-key", "a")], 200),
        ([("authorization", "Basic a"), ("x-api-key", "b")], 200),
    ):
        response = await plain.http.post(path, content=json.dumps(BODY), headers=headers)
        assert response.status_code == expected, (headers, response.text)


async def test_a_name_that_dns_could_give_the_gateway_is_refused(plain: Gateway, gateway: Gateway) -> None:
    port = plain.url.rpartition(":")[2]
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "[::1].evil.example",
        "x",
    ):
        assert await status(plain, host=host) == (403, "host_not_allowed"), host
        assert (await plain.http.get("/v1/models", headers={"host": host})).status_code == 403
    for host in (
        "localhost",
        f"LOCALHOST:{port}",
        "a.localhost",
        "127.0.0.1:1",
        "[::1]:8000",
        "10.1.2.3",
        "localhost.",
    ):
        assert (await status(plain, host=host))[0] == 200, host
    assert (await status(gateway, host="gpu-1.example:8000"))[0] == 200
    assert (await status(gateway, host="gpu-2.example"))[0] == 403


async def test_a_foreign_page_is_refused_and_an_allowed_one_may_read(
    plain: Gateway, gateway: Gateway
) -> None:
    own = plain.url
    for origin in (STRANGER, "null", own.replace("http", "https"), f"{own}0", "http://localhost"):
        assert await status(plain, origin=origin) == (403, "origin_not_allowed"), origin
    for site in ("cross-site", "same-site"):
        assert (await status(plain, sec_fetch_site=site))[0] == 403
    assert (await status(plain, origin=own))[0] == 200
    assert (await status(plain, sec_fetch_site="same-origin"))[0] == 200
    assert (await plain.http.get("/", headers={"sec-fetch-site": "cross-site"})).status_code == 200
    asking = {"origin": FRIEND, "access-control-request-method": "POST"}
    asking["access-control-request-headers"] = "authorization,content-type"
    for path in (CHAT, MESSAGES):
        asked = await gateway.http.options(path, headers=asking)
        assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, FRIEND)
        served = await gateway.http.post(
            path, json=BODY, headers={"origin": FRIEND, "sec-fetch-site": "cross-site"}
        )
        assert (served.status_code, served.headers["access-control-allow-origin"]) == (200, FRIEND)
        assert "x-request-id" in served.headers["access-control-expose-headers"]
    wrong = await gateway.http.post(CHAT, json={}, headers={"origin": FRIEND})
    assert (wrong.status_code, wrong.headers["access-control-allow-origin"]) == (400, FRIEND)
    refused = await gateway.http.post(CHAT, json=BODY, headers={"origin": STRANGER})
    assert refused.status_code == 403
    assert "access-control-allow-origin" not in refused.headers


async def test_a_body_of_another_kind_is_refused_and_told_how_to_send_it(plain: Gateway) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a", ""):
        for path in (CHAT, MESSAGES):
            assert (await status(plain, path, content_type=kind))[0] == 415, kind
    for kind in ("application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"):
        assert (await status(plain, content_type=kind))[0] == 200, kind
    curl = await plain.http.post(
        CHAT, content=b"{}", headers={"content-type": "application/x-www-form-urlencoded"}
    )
    assert "curl: -H 'content-type: application/json'" in curl.json()["error"]["message"]
    assert (await status(plain))[0] == 200


async def test_bodies_have_room_reserved_before_they_are_read(gateway: Gateway) -> None:
    host, _, port = gateway.url.removeprefix("http://").rpartition(":")
    head = f"POST {CHAT} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 200000\r\nexpect: 100-continue\r\n\r\n"
    reader, first = await asyncio.open_connection(host, int(port))
    first.write(head.encode())
    async with asyncio.timeout(PATIENCE_S):
        interim = await reader.readuntil(b"\r\n\r\n")
    assert interim == b"HTTP/1.1 100 Continue\r\n\r\n"  # the room is reserved, and the body may come
    refused = await gateway.http.post(CHAT, content=b" " * 199_000)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], refused.headers["retry-after"]) == (
        429,
        "too_many_bytes",
        "1",
    )

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 10_000

    chunked = await gateway.http.post(CHAT, content=pieces())
    assert chunked.status_code == 429
    assert (await status(gateway))[0] == 200
    first.transport.abort()
    async with asyncio.timeout(PATIENCE_S):
        while (await gateway.http.post(CHAT, content=pieces())).status_code == 429:
            await asyncio.sleep(0.02)


async def test_the_version_needs_no_key(plain: Gateway) -> None:
    assert (await plain.http.get("/version")).json() == {"version": "0.1.0"}
