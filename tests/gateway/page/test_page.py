"""The page and its stream over HTTP: where they are served, to whom, and what they may load."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from baton.fleet import Fleet
from gateway.config import parse_config
from tests.fleets import NewFleet
from tests.gateway.running import Gateway, Served, running_gateway, running_timed
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

STREAM = "/page/fleet"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(new_fleet: NewFleet) -> AsyncIterator[Served]:
    async with running_timed(new_fleet, "--log-level", "warning") as running:
        yield running


@asynccontextmanager
async def looking(
    gateway: Gateway, path: str = STREAM, key: str = ""
) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
    """Yield the events of the stream, as a viewer receives them."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with gateway.http.stream("GET", path, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        yield events_of(response)


async def events_of(response: httpx.Response) -> AsyncIterator[tuple[str, Any]]:
    kind = ""
    async for line in response.aiter_lines():
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield kind, json.loads(value)


async def next_of(events: AsyncIterator[tuple[str, Any]], kind: str) -> Any:
    """Return the value of the next event of a kind."""
    async with asyncio.timeout(PATIENCE_S):
        async for this_kind, value in events:
            if this_kind == kind:
                return value
    raise AssertionError(f"the stream ended without an event {kind!r}")


async def test_the_page_loads_only_its_own_files_and_runs_nothing_inline(served: Served) -> None:
    http = served.gateway.http
    page = await http.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script>|javascript:", page.text)
    seen, waiting = set[str](), re.findall(r'(?:src|href)="([^"#]+)"', page.text)
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        part = await http.get(f"/{path}")
        assert part.status_code == 200, path
        assert "://" not in part.text.replace("http://www.w3.org/2000/svg", ""), path
        if path.endswith(".js"):
            assert "innerHTML" not in part.text
            waiting += [f"page/{name}" for name in re.findall(r'from "\./([^"]+)"', part.text)]
    assert {"page/app.js", "page/style.css", "page/timeline.js"} <= seen
    for path in ("/", *(f"/{each}" for each in seen)):
        headers = (await http.head(path)).headers
        policy = dict(each.split(" ", 1) for each in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
    for path in ("/page/none.js", "/page/..%2f..%2fconfig.py", "/page/endpoints.py"):
        assert (await http.get(path)).status_code == 404


async def test_beyond_loopback_only_a_flag_serves_the_page() -> None:
    for listen, flags, has_page in (
        ("127.0.0.1:0", (), True),
        ("[::1]:0", (), True),
        ("0.0.0.0:0", ("--insecure-listen",), False),
        ("0.0.0.0:0", ("--insecure-listen", "--page"), True),
    ):
        assert parse_config(["--listen", listen, *flags]).has_page == has_page, (listen, flags)


async def test_elsewhere_the_page_loads_nothing_and_nobody_looks(served: Served) -> None:
    open_to_all = ("--listen", "0.0.0.0:0", "--insecure-listen")
    async with running_gateway(served.fleet.router_addresses, *open_to_all) as gateway:
        page = await gateway.http.get("/")
        policy = "default-src 'none'; frame-ancestors 'none'; style-src 'sha256-"
        assert page.headers["content-security-policy"].startswith(policy)
        assert "demo_model" in page.text
        for loading in ("http://", "https://", "src=", "<script", "@import", "url("):
            assert loading not in page.text
        for path in (STREAM, "/page/app.js"):
            assert (await gateway.http.get(path)).status_code == 404
    async with running_gateway(served.fleet.router_addresses, *open_to_all, "--page") as gateway:
        assert 'src="page/app.js"' in (await gateway.http.get("/")).text
        async with looking(gateway) as events:
            assert (await next_of(events, "facts"))["model_name"] == "demo_model"


async def test_a_viewer_sees_the_fleet_and_the_steps_of_a_request(served: Served) -> None:
    async with looking(served.gateway, f"{STREAM}?steps=true") as events:
        assert (await next_of(events, "facts"))["placement"]
        before = await next_of(events, "fleet")
        assert [worker["role"] for worker in before["workers"]] == ["decode"]
        body = {"messages": [{"role": "user", "content": "a secret"}], "max_tokens": 8, "ignore_eos": True}
        asking = asyncio.create_task(served.gateway.http.post("/v1/chat/completions", json=body))
        steps: list[Any] = []
        while sum(len(step["sequences"]) for step in steps) < 8:
            more = await next_of(events, "steps")
            assert "secret" not in json.dumps(more)
            steps += more
        assert (await asking).status_code == 200
        assert steps[0]["chunk_tokens"] > 0
        assert len({sequence for step in steps for sequence in step["sequences"]}) == 1
        assert all(step["worker_id"] == before["workers"][0]["worker_id"] for step in steps)
        while (after := await next_of(events, "fleet"))["counters"]["finished"] == 0:
            pass
        assert "secret" not in json.dumps(after)


async def test_viewers_get_at_most_five_snapshots_a_second(served: Served) -> None:
    async with looking(served.gateway) as first, looking(served.gateway) as second:
        began, uptimes = None, []
        for _ in range(6):
            snapshot = await next_of(first, "fleet")
            uptimes.append(snapshot["uptime_s"])
            await next_of(second, "fleet")
            began = began or uptimes[0]
        # On the router's clock, where a snapshot is made: what a reader is slow to read may come in a bunch.
        assert uptimes[-1] - uptimes[0] >= 5 * 0.19


async def test_a_page_of_another_site_cannot_hold_streams_open(served: Served) -> None:
    foreign = await served.gateway.http.get(STREAM, headers={"sec-fetch-site": "cross-site"})
    assert (foreign.status_code, foreign.json()["error"]["code"]) == (403, "origin_not_allowed")


async def test_a_gateway_leaves_at_once_however_many_look(served: Served) -> None:
    slow_to_leave = ("--drain-s", str(10 * PATIENCE_S))
    async with (
        running_gateway(served.fleet.router_addresses, *slow_to_leave) as gateway,
        looking(gateway) as events,
    ):
        await next_of(events, "fleet")
        gateway.process.terminate()
        async with asyncio.timeout(PATIENCE_S):
            assert [kind async for kind, _ in events][-1:] in ([], ["fleet"])
            assert await asyncio.to_thread(gateway.process.wait) == 0


def new_key(fleet: Fleet, folder: Path, tenant: str, *flags: str) -> str:
    """Make a key as an operator does."""
    assert fleet.secured is not None
    out, door = folder / f"{tenant}.key", fleet.secured.certificates.folder / "door.json"
    command = [sys.executable, "-m", "baton.cli", "key", str(door), tenant, "--out", str(out), *flags]
    subprocess.run(command, check=True, capture_output=True)
    return out.read_text(encoding="ascii").strip()


async def test_where_callers_have_keys_only_an_operator_looks(new_fleet: NewFleet, tmp_path: Path) -> None:
    async with new_fleet(timed="demo-cpu", prefill=0, secure=tmp_path / "secure") as fleet:
        assert fleet.secured is not None
        made = fleet.secured.certificates
        flags = ("--ca", made.ca, "--cert", made.cert("gateway"), "--key", made.key("gateway"))
        async with running_gateway(fleet.router_addresses, *map(str, flags)) as gateway:
            assert (await gateway.http.get("/")).status_code == 200
            without = await gateway.http.get(STREAM)
            assert (without.status_code, without.json()["error"]["code"]) == (401, "invalid_api_key")
            key = new_key(fleet, tmp_path, "acme")
            await until_known(gateway, key)
            refused = await gateway.http.get(STREAM, headers={"authorization": f"Bearer {key}"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "operators_only")
            operator = fleet.secured.api_key.read_text(encoding="ascii").strip()
            async with looking(gateway, key=operator) as events:
                assert (await next_of(events, "fleet"))["workers"]


async def until_known(gateway: Gateway, key: str) -> None:
    """Wait until routers accept a new key."""
    headers = {"authorization": f"Bearer {key}"}
    async with asyncio.timeout(PATIENCE_S):
        while (await gateway.http.get("/v1/models", headers=headers)).status_code != 200:
            await asyncio.sleep(0.05)
