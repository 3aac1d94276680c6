"""Redis for what has to outlive the Redis process itself: the gateways' files, batches and responses.

It has no epoch: these keys stay valid when Redis restarts with what it wrote to disk. `keys.durable` keeps
them apart from the fleet's own state, which a new epoch clears. Values are bytes. What ends at a time does so
by a clock of its own, which does not follow when the server's clock jumps.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import redis.asyncio
from redis.commands.core import AsyncScript
from redis.exceptions import ResponseError

from runtime.state import keys
from runtime.state.access import UNENCRYPTED, RedisAccess
from runtime.state.connection import durable_source, open_pool, reporting_failures
from runtime.state.errors import NO_EVICTION, StoreEvicts, StoreUnavailable


class DurableRedis:
    """Connections to one Redis, opened when needed; every use may raise `StoreUnavailable`.

    `StoreEvicts`, one of these, means that Redis could forget what it is told. Raises `SecretUnusable` when
    it is built.
    """

    def __init__(self, url: str, access: RedisAccess = UNENCRYPTED) -> None:
        self._url = url
        pool = open_pool(url, access, decode_responses=False, redis_connect_func=_refuse_evicting)
        self._redis = redis.asyncio.Redis.from_pool(pool)
        self._scripts: dict[str, AsyncScript] = {}

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    @contextlib.contextmanager
    def client(self) -> Iterator[Any]:  # redis-py's types allow texts where this client returns bytes
        """Yield the `redis.asyncio.Redis` for plain commands."""
        try:
            with reporting_failures(self._url):
                yield self._redis
        except StoreUnavailable as error:
            if isinstance(error.__cause__, _Evicts):
                raise StoreEvicts(self._url, str(error.__cause__)) from None
            raise

    async def run(
        self, script: str, script_keys: Sequence[str], args: Sequence[str | bytes | int | float]
    ) -> Any:
        """Run `lua/durable/<script>.lua`. It must be idempotent: a lost response makes it run twice."""
        if script not in self._scripts:
            self._scripts[script] = self._redis.register_script(durable_source(script))
        with self.client():
            return await self._scripts[script](keys=[keys.durable_clock(), *script_keys], args=list(args))


class _Evicts(ResponseError):
    """The policy by which Redis would drop keys."""


async def _refuse_evicting(connection: redis.asyncio.Connection) -> None:
    """Ask each server that a connection reaches whether it keeps what it is told. Raises `_Evicts`."""
    await connection.on_connect()
    await connection.send_command("INFO", "memory")
    text = (await connection.read_response()).decode()
    policy = dict(line.partition(":")[::2] for line in text.splitlines())["maxmemory_policy"]
    if policy != NO_EVICTION:
        raise _Evicts(policy)


@contextlib.asynccontextmanager
async def open_durable(url: str | None, access: RedisAccess) -> AsyncIterator[DurableRedis | None]:
    """Yield the connection, or None without a URL, and close it."""
    opened = None if url is None else DurableRedis(url, access)
    try:
        yield opened
    finally:
        if opened is not None:
            await opened.close()
