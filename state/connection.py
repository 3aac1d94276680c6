"""The way to one Redis: scripts run whole or not at all, and only against the state they were meant for.

What Redis holds is worth something only as long as that one process holds it: a server that crashed, was
replaced by its replica or was emptied may have forgotten what routers and workers still count on, or remember
what is long over. So all state belongs to an **epoch**. The first to find a server without one clears what is
there and opens the next; every script names the epoch it was meant for and is refused in another. Whoever was
refused enters the new one, and all that it still holds. A second after the last of these, grants go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from importlib import resources
from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from scheduling.admission.shares import ACTIVE_MS, MAX_DEBTS
from state import keys
from state.access import IN_THE_CLEAR, RedisAccess, connection_settings
from state.errors import StoreUnavailable
from state.records import CLASS_SCORE, GRANT_TTL_MS, MAX_GRANTS_LOST, SILENT_MS

CALL_TIMEOUT_S = 1.0
RECONNECT_S = 0.5
SILENCE_S = 2.0
"""Of a subscription: then it is asked, and has as long again for its answer."""
MAX_CONNECTIONS = 32
"""A burst of calls waits for its turn: a connection for each would find the end of them."""
TURN_S = 2.0
"""For the wait. Calls are short; one that waits longer than this finds a Redis that does not answer."""

_FAILURES = (RedisError, OSError, MemoryError)
"""A server that answers with an error (out of memory, read-only) serves no better than one that is silent.
Nor does any server serve one who has no memory to ask.
"""

_SCRIPTS: dict[str, tuple[str, ...]] = {
    "register_worker": (),
    "unregister_worker": (),
    "list_workers": (),
    "list_starting": (),
    "enqueue": ("line",),
    "dequeue": ("line",),
    "grant": ("line", "ledger"),
    "settle": ("line", "ledger"),
    "queue_status": ("line",),
    "release": ("ledger",),
    "renew": ("ledger",),
    "amounts": ("ledger",),
    "charge_tenant": ("shares",),
    "refund_tenant": ("shares",),
    "take_holds": ("ledger",),
    "take_budget": ("budget",),
    "return_budget": ("budget",),
}
"""Each with what is put before it, besides the constants and the prelude."""

LONGEST_SILENCE_MS = 5000
"""Between two calls of a living fleet, with room: less than what is held lasts beyond its next renewal."""
_CONSTANTS = f"""\
local CLASS_SCORE, GRANT_TTL_MS, MAX_GRANTS_LOST = {CLASS_SCORE}, {GRANT_TTL_MS}, {MAX_GRANTS_LOST}
local ACTIVE_MS, MAX_DEBTS = {ACTIVE_MS}, {MAX_DEBTS}
local LONGEST_SILENCE_MS, SILENT_MS, SEEN_MS, DAY_MS = {LONGEST_SILENCE_MS}, {SILENT_MS}, 100, 86400000
"""

FORGOTTEN = "EPOCH"
"""How the answer to a script begins that was meant for another epoch; see prelude.lua."""
QUIET_MS = 1000
"""No grants for so long after a peer came back to a server that forgot it: each asks something of it every
second."""


class Connection:
    """Connections to one Redis, and the epoch this process is in; calls may raise `StoreUnavailable`."""

    def __init__(self, url: str, access: RedisAccess = IN_THE_CLEAR) -> None:
        self._url = url
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=TURN_S,
            decode_responses=True,
            socket_timeout=CALL_TIMEOUT_S,
            socket_connect_timeout=CALL_TIMEOUT_S,
            retry=Retry(NoBackoff(), retries=1, supported_errors=(RedisConnectionError,)),
            redis_connect_func=_greet,
            **connection_settings(url, access),
        )
        self._redis = redis.asyncio.Redis.from_pool(pool)
        self._scripts = {name: self._redis.register_script(source(name)) for name in _SCRIPTS}
        self._epoch = ""
        self._entering = asyncio.Lock()
        self.on_new_epoch: Callable[[], None] = lambda: None
        """Called in each epoch but the first: what this process holds must be entered again."""

    async def wait_until_ready(self, timeout_s: float) -> None:
        """Wait for Redis to answer, at most `timeout_s`; raises `StoreUnavailable`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._wait_until_ready()
        except TimeoutError as error:
            raise StoreUnavailable(self._url, f"waited {timeout_s:g} s") from error
        except RedisError as error:
            raise StoreUnavailable(self._url, f"refused us: {error}") from error

    async def _wait_until_ready(self) -> None:
        while True:
            try:
                with _keeping_cancellation():
                    await self._redis.ping()
            except RedisError as error:
                if _is_refusal(error):
                    raise
                await asyncio.sleep(0.1)
            else:
                return

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    async def run(self, script: str, script_keys: Sequence[str], args: Sequence[str | int]) -> Any:
        """Run one script in the epoch of what Redis holds; if that is a new one, enter it first."""
        with self.answering():
            if not self._epoch:
                await self._enter("")
            while True:
                epoch = self._epoch
                try:
                    return await self._scripts[script](keys=[keys.epoch(), *script_keys], args=[epoch, *args])
                except ResponseError as error:
                    if not str(error).startswith(FORGOTTEN):
                        raise
                await self._enter(epoch)

    async def _enter(self, last: str) -> None:
        async with self._entering:
            if self._epoch != last:
                return
            self._epoch = await self._redis.eval(*_enter(last))
        if last:
            self.on_new_epoch()

    @contextlib.contextmanager
    def answering(self) -> Iterator[redis.asyncio.Redis]:
        """Redis itself, for what needs no script; its failures leave as `StoreUnavailable`."""
        try:
            with _keeping_cancellation():
                yield self._redis
        except _FAILURES as error:
            raise StoreUnavailable(self._url, _reason(error)) from error

    async def messages(self, channels: Sequence[str]) -> AsyncGenerator[tuple[str, str] | None, None]:
        """(channel, message) as they are published. None first, and again after each lost connection."""
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
                    await pubsub.aclose()  # type: ignore[no-untyped-call]  # redis annotates it not


async def _next_message(pubsub: redis.asyncio.client.PubSub) -> dict[str, Any]:
    """One that is silent is asked for an answer: a connection whose other end is gone without a word would be
    listened to for ever.
    """
    message: dict[str, Any] | None = await pubsub.get_message(timeout=SILENCE_S)
    if message is None:
        await pubsub.ping()
        message = await pubsub.get_message(timeout=SILENCE_S)
    if message is None:
        raise RedisConnectionError(f"silent for {2 * SILENCE_S:g} s")
    return message


async def _greet(connection: redis.asyncio.Connection) -> None:
    """Before anything else is said over a new connection: the server may be another one than a moment ago."""
    await connection.on_connect()
    await connection.send_command("EVAL", *_enter(""))
    await connection.read_response()


def _enter(last: str) -> tuple[str, int, str, str, str, str, str]:
    return _text("enter"), 1, keys.epoch(), uuid.uuid4().hex, last, str(QUIET_MS), keys.all_keys()


def source(script: str) -> str:
    """A script with all that is put before it."""
    return _CONSTANTS + "".join(_text(part) for part in ("prelude", *_SCRIPTS[script], script))


def _text(part: str) -> str:
    return (resources.files("state") / "lua" / f"{part}.lua").read_text()


@contextlib.contextmanager
def _keeping_cancellation() -> Iterator[None]:
    """Put a cancellation back that was lost inside.

    redis-py sends through `asyncio.wait_for`, which before Python 3.12 answers a cancellation with the result
    if the send has just ended: whoever cancelled would wait for a call, or a loop of calls, that goes on.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        yield
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


def _is_refusal(error: RedisError) -> bool:
    """Waiting does not help. redis-py wraps what goes wrong while it connects."""
    return isinstance(error, AuthenticationError) or isinstance(error.__cause__, AuthenticationError)


def _reason(error: Exception) -> str:
    """A word for a broken connection, the server's own words for a refusal."""
    return str(error) if isinstance(error, ResponseError) else type(error).__name__
