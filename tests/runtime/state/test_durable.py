"""The durable keys outlive their server, and the epochs of the fleet's own state."""

from __future__ import annotations

import pytest

from runtime.state import keys
from runtime.state.durable import DurableRedis
from runtime.state.errors import StoreEvicts, StoreUnavailable
from runtime.state.store import Store
from tests.redis_server import redis_server

pytestmark = pytest.mark.integration


async def test_what_is_kept_survives_a_killed_server_and_a_new_epoch() -> None:
    key = keys.durable("a", "b")
    with redis_server("--appendonly", "yes", "--appendfsync", "always") as server:
        store, durable = await Store.connect(server.url), DurableRedis(server.url)
        await store.charge_tenant("acme", 1.0, 1e9)
        with durable.client() as redis:
            await redis.set(key, b"\xff")
        server.stop(kill=True)
        with pytest.raises(StoreUnavailable), durable.client() as redis:
            await redis.get(key)
        server.start()
        await store.close()
        store = await Store.connect(server.url)
        assert (await store.charge_tenant("acme", 1.0, 1e9)).counter == 1.0, "the fleet's own state is gone"
        with durable.client() as redis:
            assert await redis.get(key) == b"\xff"
        await durable.close()
        await store.close()


async def test_no_call_reaches_a_redis_that_may_evict() -> None:
    with redis_server("--maxmemory-policy", "allkeys-lru") as server:
        with pytest.raises(StoreEvicts):
            await Store.connect(server.url)  # waits until the server responds
        durable = DurableRedis(server.url)
        said = "its maxmemory-policy is allkeys-lru; accepted: noeviction"
        for _ in range(2):
            with pytest.raises(StoreEvicts, match=said), durable.client() as redis:
                await redis.set(keys.durable("a"), b"1")
        await durable.close()
