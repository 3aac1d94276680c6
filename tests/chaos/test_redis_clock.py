"""Redis's clock jumps while the server runs."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
import redis.asyncio

from tests.chaos.redis_clock import RedisClock, can_jump
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer

HOUR_S = 3600.0
pytestmark = pytest.mark.integration


@pytest.mark.parametrize("is_linked", [True, False])
async def test_a_server_tells_the_time_of_its_clock_if_that_is_linked(is_linked: bool) -> None:
    assert can_jump(), "a C compiler is part of the setup"
    with tempfile.TemporaryDirectory(prefix="baton-clock-") as folder:
        clock = RedisClock(Path(folder))
        server = RedisServer(folder, environment=clock.environment if is_linked else None)
        server.start()
        try:
            async with redis.asyncio.Redis.from_url(server.url) as admin, asyncio.timeout(PATIENCE_S):
                while not Path(folder, "redis.sock").exists():
                    await asyncio.sleep(0.01)
                await admin.set("dies", "", px=round(HOUR_S / 2 * 1000))
                assert not await clock.is_seen(server.url), "it has not jumped yet"
                clock.jump(-HOUR_S)
                assert await clock.is_seen(server.url) == is_linked
                assert await admin.exists("dies")
                clock.jump(2 * HOUR_S)
                assert await clock.is_seen(server.url) == is_linked
                assert bool(await admin.exists("dies")) != is_linked, "keys end by it"
        finally:
            server.stop(kill=True)
