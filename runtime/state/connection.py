"""Connections to one Redis. Scripts run atomically, and only against the state they were meant for.

The state in Redis is valid only while one server process holds it. A server that crashed, was replaced by its
replica or was emptied may have lost state that routers and workers rely on, or may have kept outdated state.
All state therefore belongs to an **epoch**. The first client that finds a server without an epoch clears the
server and opens a new one. Every script names its epoch and is refused in another. A client that is refused
enters the new epoch and enters again everything it holds. Grants continue a second after the last client has
come back. Routers tell a new epoch which others they saw before: until these are back, or what they held has
expired, nothing is granted.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import re
import socket
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Sequence
from importlib import resources
from typing import Any

import redis.asyncio
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, NoScriptError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from runtime.state import keys
from runtime.state.access import UNENCRYPTED, RedisAccess, connection_settings
from runtime.state.errors import NO_EVICTION, StoreEvicts, StoreUnavailable
from runtime.state.multiplexer import Multiplexer
from runtime.state.records import (
    ABANDONED_MS,
    CLASS_SCORE,
    GRANT_TTL_MS,
    LEASE_TTL_S,
    MAX_GRANTS_LOST,
    MOST_FORGOTTEN,
    SILENT_MS,
)
from runtime.state.standstill import time_limit
from scheduling.admission.shares import ACTIVE_MS, CHARGED_MS, MAX_DEBTS, SEAT_SHARE
from scheduling.request import SloClass

CALL_TIMEOUT_S = 1.0
RECONNECT_S = 0.5
SILENCE_S = 2.0
"""A subscription that is silent for this long is pinged, and has as long again to respond."""
MAX_CONNECTIONS = 32
"""Calls of a burst share these connections and wait for one: a connection per call could exhaust them."""
MAX_WAIT_FOR_CONNECTION_S = 2.0
"""Calls are short: a call that waits longer for a connection, or for its turn on one that is shared, has a
Redis that does not respond.
"""

_FAILURES = (RedisError, OSError, MemoryError)
"""An error response (out of memory, read-only) is as good as no response, and so is a lack of memory here."""

SCRIPTS: dict[str, tuple[str, ...]] = {
    "register_worker": (),
    "unregister_worker": (),
    "list_workers": (),
    "list_starting": (),
    "list_routers": (),
    "enqueue": ("tenants", "lanes", "line"),
    "dequeue": ("tenants", "lanes", "line"),
    "grant": ("tenants", "lanes", "seats", "line", "ledger", "holds"),
    "settle": ("tenants", "lanes", "seats", "line", "ledger", "holds"),
    "lease_at_once": ("tenants", "seats", "ledger", "holds"),
    "queue_status": ("tenants", "lanes", "line"),
    "release_credit": ("ledger", "holds"),
    "release_lease": ("tenants", "seats", "ledger", "holds"),
    "renew": ("ledger",),
    "amounts": ("ledger",),
    "charge_tenant": ("shares",),
    "refund_tenant": ("shares",),
    "take_holds": ("tenants", "seats", "ledger", "holds"),
    "take_budget": ("budget",),
    "return_budget": ("budget",),
    "find_prefix": (),
    "add_demand": (),
    "demand": (),
}
"""Each script with the parts that precede it, besides the clock and the prelude.

Each call makes the functions of these parts again, so a script has only those that it needs.
"""

LONGEST_SILENCE_MS = 5000
"""A living fleet calls more often than this. It is less than the time by which holds outlast a renewal."""
_CONSTANTS = {
    "CLASS_SCORE": CLASS_SCORE,
    "LAST_CLASS": int(max(SloClass)),
    "TURN_CLASS": 2**40,
    "GRANT_TTL_MS": GRANT_TTL_MS,
    "MAX_GRANTS_LOST": MAX_GRANTS_LOST,
    "SEAT_SHARE": SEAT_SHARE,
    "ACTIVE_MS": ACTIVE_MS,
    "MAX_DEBTS": MAX_DEBTS,
    "CHARGED_MS": CHARGED_MS,
    "LONGEST_SILENCE_MS": LONGEST_SILENCE_MS,
    "SILENT_MS": SILENT_MS,
    "ABANDONED_MS": ABANDONED_MS,
    "MOST_FORGOTTEN": MOST_FORGOTTEN,
    "SEEN_MS": 100,
    "DAY_MS": 86_400_000,
}
"""The numbers that stand in the scripts in place of these names: local variables would cost time in each."""
_NAMES = re.compile(rf"\b({'|'.join(_CONSTANTS)})\b")

FORGOTTEN = "EPOCH"
"""How the error begins that a script of another epoch gets; see prelude.lua."""
QUIET_MS = 1000
"""No grants for this long after a client enters a new epoch: each client calls at least once a second."""


class Connection:
    """Connections to one Redis, and the epoch of this process; calls may raise `StoreUnavailable`."""

    def __init__(self, url: str, access: RedisAccess = UNENCRYPTED) -> None:
        self._url = url
        pool = open_pool(url, access, decode_responses=True, redis_connect_func=_greet)
        self._redis = redis.asyncio.Redis.from_pool(pool)
        self._calls = Multiplexer(self._make_connection, MAX_WAIT_FOR_CONNECTION_S, CALL_TIMEOUT_S)
        self._scripts = {name: source(name) for name in SCRIPTS}
        self._hashes = {name: hashlib.sha1(text.encode()).hexdigest() for name, text in self._scripts.items()}  # noqa: S324 -- how Redis names scripts
        self._epoch = ""
        self.router = ""
        """Set by a router."""
        self.peers: Collection[str] = ()
        """The ids of the other routers that there are: a new epoch waits for them."""
        self._entering: asyncio.Future[str] | None = None
        self.on_new_epoch: Callable[[], None] = lambda: None
        """Called in each epoch but the first: this process must enter again what it holds."""

    def _make_connection(self) -> redis.asyncio.Connection:
        make = self._redis.connection_pool.make_connection
        connection: redis.asyncio.Connection = make()  # type: ignore[no-untyped-call]  # as below
        connection.socket_timeout = connection.socket_connect_timeout = None  # calls have their own
        return connection

    async def wait_until_ready(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` for Redis to respond; raises `StoreUnavailable`.

        `StoreEvicts`, one of these, means that Redis could forget what it is told.
        """
        reason = "no response"
        try:
            async with asyncio.timeout(timeout_s):
                while failure := await self._failure():
                    reason = failure
                    await asyncio.sleep(0.1)
        except TimeoutError as error:
            raise StoreUnavailable(self._url, f"waited {timeout_s:g} s: {reason}") from error
        except RedisError as error:
            raise StoreUnavailable(self._url, f"refused us: {error}") from error

    async def _failure(self) -> str:
        """Return why Redis does not respond, or "" if it does.

        Raises `RedisError` if it refuses us, and `StoreEvicts`.
        """
        try:
            with _keeping_cancellation():
                await self._redis.ping()
                policy = (await self._redis.info("memory"))["maxmemory_policy"]
        except RedisError as error:
            if _is_refusal(error):
                raise
            return _reason(error)
        if policy != NO_EVICTION:
            raise StoreEvicts(self._url, policy)
        return ""

    async def read_clock_s(self) -> float | None:
        """Return the time of Redis in seconds since 1970; None while it does not respond."""
        try:
            with _keeping_cancellation():
                seconds, microseconds = await self._redis.time()
        except _FAILURES:
            return None
        return float(seconds + microseconds / 1e6)

    async def close(self) -> None:
        """Close the connections."""
        await self._calls.close()
        await self._redis.aclose()

    async def run(self, script: str, script_keys: Sequence[str], args: Sequence[str | int]) -> Any:
        """Run one script in the current epoch of Redis; if that is a new one, enter it first."""
        with reporting_failures(self._url):
            if not self._epoch:
                await self._enter("")
            while True:
                epoch = self._epoch
                try:
                    return await self._calls.call(
                        *("EVALSHA", self._hashes[script], 1 + len(script_keys)),
                        *(keys.epoch(), *script_keys),
                        *(epoch, *args),
                    )
                except NoScriptError:
                    await self._calls.call("SCRIPT", "LOAD", self._scripts[script])
                    continue
                except ResponseError as error:
                    if not str(error).startswith(FORGOTTEN):
                        raise
                await self._enter(epoch)

    async def _enter(self, last: str) -> None:
        """Enter the epoch after the last one, with one call for all that wait for it."""
        if self._epoch != last:
            return
        if self._entering is None:
            self._entering = self._calls.call("EVAL", *_enter(last, self.router, self.peers))
            self._entering.add_done_callback(self._entered)
        await asyncio.shield(self._entering)

    def _entered(self, epoch: asyncio.Future[str]) -> None:
        last, self._entering = self._epoch, None
        if not epoch.cancelled() and epoch.exception() is None:
            self._epoch = epoch.result()
            if last:
                self.on_new_epoch()

    @contextlib.contextmanager
    def client(self) -> Iterator[redis.asyncio.Redis]:
        """Yield the client, for what needs no script; failures become `StoreUnavailable`."""
        with reporting_failures(self._url):
            yield self._redis

    async def messages(self, channels: Sequence[str]) -> AsyncGenerator[tuple[str, str] | None, None]:
        """Yield (channel, message) as published. Yield None at first and after each lost connection."""
        while True:
            pubsub = self._redis.pubsub()
            try:
                with _keeping_cancellation():
                    await pubsub.subscribe(*channels)
                while True:
                    with _keeping_cancellation():
                        message = await _next_message(pubsub)
                    if message["type"] == "message":
                        yield message["channel"], message["data"]
                    elif message["type"] == "subscribe" and message["data"] == len(channels):
                        yield None  # redis-py may have connected again by itself
            except _FAILURES:
                await asyncio.sleep(RECONNECT_S)
            finally:
                # A failure to close must not take the place of the cancellation that closes.
                with contextlib.suppress(*_FAILURES):
                    await pubsub.aclose()  # type: ignore[no-untyped-call]  # redis ships no annotation


def open_pool(url: str, access: RedisAccess, **more: Any) -> redis.asyncio.BlockingConnectionPool:
    """Return a bounded pool whose calls fail soon. Raises `SecretUnusable`."""
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        url,
        max_connections=MAX_CONNECTIONS,
        timeout=MAX_WAIT_FOR_CONNECTION_S,
        socket_timeout=CALL_TIMEOUT_S,
        socket_connect_timeout=CALL_TIMEOUT_S,
        retry=Retry(NoBackoff(), retries=1, supported_errors=(RedisConnectionError,)),
        **connection_settings(url, access),
        **more,
    )
    pool.connection_class = _hardened(pool.connection_class)
    return pool


def _hardened(kind: type[AbstractConnection]) -> type[AbstractConnection]:
    """Return a kind of connection that takes two things into account.

    - A transport that has been closed is a lost connection like any other. Writing to one raises
      `RuntimeError` on uvloop, which redis-py does not expect. It can be closed in the middle of a greeting,
      by a server that dies.
    - A response that came while the event loop stood still came in time.
    """

    class Hardened(kind):  # type: ignore[misc, valid-type]  # one of three, by the scheme of the URL
        async def send_packed_command(self, *args: Any, **kwargs: Any) -> None:
            try:
                await super().send_packed_command(*args, **kwargs)
            except RuntimeError as error:
                raise RedisConnectionError(str(error)) from error

        def read_response(self, *args: Any, timeout: float | None = None, **kwargs: Any) -> Awaitable[Any]:
            read: Callable[..., Awaitable[Any]] = super().read_response
            if timeout is not None or self.socket_timeout is None:
                return read(*args, timeout=timeout, **kwargs)
            return self._read_in_time(read(*args, timeout=math.inf, **kwargs))

        async def _read_in_time(self, response: Awaitable[Any]) -> Any:
            try:
                async with time_limit(self.socket_timeout):
                    return await response
            except TimeoutError as error:
                raise RedisTimeoutError(f"no response within {self.socket_timeout:g} s") from error

    return Hardened


@contextlib.contextmanager
def reporting_failures(url: str) -> Iterator[None]:
    """Raise `StoreUnavailable` for failures of Redis inside."""
    try:
        with _keeping_cancellation():
            yield
    except _FAILURES as error:
        raise StoreUnavailable(url, _reason(error)) from error


async def _next_message(pubsub: redis.asyncio.client.PubSub) -> dict[str, Any]:
    """Return the next message. Ping a silent server: a connection can be dead without being closed."""
    message: dict[str, Any] | None = await pubsub.get_message(timeout=SILENCE_S)
    if message is None:
        await pubsub.ping()
        message = await pubsub.get_message(timeout=SILENCE_S)
    if message is None:
        raise RedisConnectionError(f"silent for {2 * SILENCE_S:g} s")
    return message


async def _greet(connection: redis.asyncio.Connection) -> None:
    """Enter the epoch before any other command: a new connection may reach another server."""
    await connection.on_connect()
    await connection.send_command("EVAL", *_enter(""))
    await connection.read_response()


def _enter(last: str, router: str = "", peers: Collection[str] = ()) -> tuple[str | int, ...]:
    args = uuid.uuid4().hex, last, QUIET_MS, keys.all_keys(), round(LEASE_TTL_S * 1000), router
    return _joined("clock", "enter"), 1, keys.epoch(), *args, *peers


def source(script: str) -> str:
    """Return a script with all the parts that precede it."""
    return _joined("clock", "prelude", *SCRIPTS[script], script)


def durable_source(script: str) -> str:
    """Return a script of durable keys with all the parts that precede it."""
    return _joined("clock", "durable/prelude", f"durable/{script}")


def _joined(*parts: str) -> str:
    text = "".join(map(script_text, parts))
    return _NAMES.sub(lambda name: str(_CONSTANTS[name[0]]), text)


def script_text(part: str) -> str:
    """Return a script, or a part of one."""
    return (resources.files("runtime.state") / "lua" / f"{part}.lua").read_text()


@contextlib.contextmanager
def _keeping_cancellation() -> Iterator[None]:
    """Raise a cancellation again that was lost inside.

    redis-py sends through `asyncio.wait_for`. Before Python 3.12 that swallows a cancellation if the send has
    just ended, and the canceller would wait for a call, or a loop of calls, that goes on.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        yield
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


def _is_refusal(error: RedisError) -> bool:
    """Return whether Redis refused us. redis-py wraps errors that occur while it connects."""
    refusals = AuthenticationError, NoPermissionError
    return isinstance(error, refusals) or isinstance(error.__cause__, refusals)


def _reason(error: Exception) -> str:
    """Return the server's own words for an error response, else what kept a connection from being made."""
    if isinstance(error, ResponseError):
        return str(error)
    found = error.__cause__ or error.__context__  # redis-py wraps errors that occur while it connects
    if isinstance(found, socket.gaierror):
        return f"its name does not resolve: {found.strerror}"
    return type(error).__name__
