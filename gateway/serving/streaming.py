"""Server-sent events, and callers who leave.

A caller who closes the connection is noticed at once, while the fleet is silent too, and its generation is
cancelled. A caller who does not read for `MAX_WRITE_S` is cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.serving.connection import Connection
from gateway.serving.direct import Line
from gateway.serving.errors import drained
from gateway.serving.request_log import ending, raise_if_over

T = TypeVar("T")

KEEP_ALIVE_S = 10.0
"""Proxies close connections that are silent for a minute; a comment keeps a queued request's open."""
MAX_WRITE_S = 60.0
LAST_WRITE_S = 0.5
"""How long a stream may take to write its error when the gateway has to leave."""
KEEP_ALIVE = b": keep-alive\n\n"


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. Cancels it and raises `ClientDisconnect` if the caller leaves before.

    Raises `ApiError` if the gateway has to leave before.
    """
    working = asyncio.ensure_future(work)
    leaving: asyncio.Future[None] = working.get_loop().create_future()
    connection: Connection | None = getattr(request.state, "connection", None)
    if connection is not None:  # a line of a batch has none
        connection.when_lost(leaving.cancel)
    over = ending()
    ends = (working, leaving) if over is None else (working, leaving, over)
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect if leaving.done() else drained()
    finally:
        await _end(working)


async def merged(sources: Sequence[AsyncGenerator[bytes, None]]) -> AsyncGenerator[bytes, None]:
    """Yield what all sources yield, as it comes. The first error is raised. Closes the sources."""
    if len(sources) == 1:
        async with aclosing(sources[0]) as items:
            async for data in items:
                yield data
        return
    ready: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(maxsize=1)
    is_over = False

    async def pump(source: AsyncGenerator[bytes, None]) -> None:
        try:
            async with aclosing(source) as items:
                async for data in items:
                    await ready.put(data)
            await ready.put(None)
        except Exception as error:  # noqa: BLE001 -- the reader raises it
            if not is_over:
                await ready.put(error)

    tasks = [asyncio.ensure_future(pump(source)) for source in sources]
    try:
        left = len(tasks)
        while left:
            try:
                item = await ready.get()
            except asyncio.CancelledError:
                raise_if_over()
                raise
            if isinstance(item, Exception):
                raise item
            if item is None:
                left -= 1
                continue
            yield item
    finally:
        is_over = True
        await _end(*tasks)


class EventStream(Response):
    """A response of server-sent events.

    `events` yields them ready to send, and is closed at the end. It may write others to its line, while the
    next one is awaited.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: Callable[[Line], AsyncGenerator[bytes, None]], headers: Mapping[str, str]
    ) -> None:
        # A proxy that buffers would hold tokens back.
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        del self.headers["content-length"]
        self._events = events(self)
        self._now = asyncio.get_running_loop().time
        self._connection: Connection | None = None
        self._watching: asyncio.TimerHandle | None = None
        self._written_at = 0.0
        self._is_writing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._connection = connection = scope["state"]["connection"]
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._written_at = self._now()
        self._watch()
        pumping = asyncio.ensure_future(self._pump(send))
        connection.when_lost(pumping.cancel)
        over = ending()
        ends = (pumping,) if over is None else (pumping, over)
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not pumping.done():
                pumping.cancel()  # the events end with an error instead, which is written
                await asyncio.wait((pumping,), timeout=LAST_WRITE_S)
            if pumping.done() and not pumping.cancelled():
                pumping.result()
        finally:
            assert self._watching is not None
            self._watching.cancel()
            await _end(pumping)

    @property
    def is_free(self) -> bool:
        return not self._is_writing and self._connection is not None and self._connection.is_free

    def write_now(self, event: bytes) -> None:
        assert self._connection is not None
        self._connection.write_now(event)
        self._written_at = self._now()

    async def _pump(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            async for event in events:
                self._written_at, self._is_writing = self._now(), True
                await send({"type": "http.response.body", "body": event, "more_body": True})
                self._is_writing = False
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _watch(self) -> None:
        """Fill a silence with a comment. Cut off a caller who has not read for `MAX_WRITE_S`."""
        assert self._connection is not None
        now, is_free = self._now(), self.is_free
        due_at = self._written_at + (KEEP_ALIVE_S if is_free else MAX_WRITE_S)
        if now >= due_at:
            if not is_free:
                self._connection.transport.abort()
                return
            self.write_now(KEEP_ALIVE)
            due_at = now + KEEP_ALIVE_S
        next_at = min(due_at, now + KEEP_ALIVE_S)  # the caller may read again meanwhile
        self._watching = asyncio.get_running_loop().call_at(next_at, self._watch)


async def _end(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
