"""A gateway that cannot work says why."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import subprocess
import sys
from pathlib import Path

import pytest

from baton.security.certificates import make_certificates
from gateway.app import HEALTH_CONNECT_S
from runtime.state.errors import StoreEvicts
from runtime.state.store import Store
from tests.gateway.running import running_gateway
from tests.patience import PATIENCE_S
from tests.redis_server import redis_server

pytestmark = pytest.mark.integration

PROBE_S = 5.0
"""The time that the chart's readiness probe has."""


async def test_health_names_unknown_routers_within_the_time_of_a_probe() -> None:
    assert HEALTH_CONNECT_S < PROBE_S / 2
    async with running_gateway(["routers.invalid:50051"], "--connect-s", "3600") as gateway:
        response = await gateway.http.get("/health")  # a busy machine may take longer than a probe would wait
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (503, "unavailable")
        assert "errors resolving routers.invalid:50051" in error["message"]


def ended_start(*flags: str) -> tuple[int, str]:
    """Return the exit code of a gateway that ends at once, and its last sentence."""
    ended = subprocess.run(
        [sys.executable, "-m", "gateway", "--listen", "127.0.0.1:0", *flags],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    return ended.returncode, ended.stderr.splitlines()[-1]


def test_an_expired_certificate_ends_the_start(tmp_path: Path) -> None:
    made = make_certificates(tmp_path, (), 30, dt.datetime.now(dt.UTC) - dt.timedelta(days=60))
    cert, key = made.cert("gateway"), made.key("gateway")
    said = 2, f"{cert} is not valid now: certificate has expired"
    assert ended_start("--https-cert", str(cert), "--https-key", str(key)) == said
    assert ended_start("--ca", str(made.ca), "--cert", str(cert), "--key", str(key)) == said


async def test_a_redis_that_may_evict_ends_the_start() -> None:
    with redis_server("--maxmemory-policy", "allkeys-lru") as server:
        with pytest.raises(StoreEvicts):
            await Store.connect(server.url)  # waits until the server responds
        code, said = ended_start("--redis", server.url)
    assert (code, said.partition(": ")[2]) == (
        3,
        "its maxmemory-policy is allkeys-lru; accepted: noeviction",
    )


async def test_a_redis_that_is_away_does_not_end_the_start(tmp_path: Path) -> None:
    flags = "--insecure-listen", "--redis", "redis://redis.invalid:6379/0"
    path = tmp_path / "log"
    async with running_gateway(["127.0.0.1:1"], *flags, log=path), asyncio.timeout(PATIENCE_S):
        while "\n" not in path.read_text():
            await asyncio.sleep(0.02)
    said = json.loads(path.read_text().splitlines()[0])
    assert said["event"] == "redis_away"
    assert said["reason"].startswith("its name does not resolve: ")
