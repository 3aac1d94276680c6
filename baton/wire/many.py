"""Many generations over one call: a message for all tokens that arrive together, in place of one for each.

    Generate ──▶ a call of its own while there are few, as `Sharing` says
        └──────▶ GenerateMany: each call takes new generations for a while, and then ends with its last one
    Resume   ──▶ a call of its own, and so are all others

Where a caller awaits the next event of a generation and can take tokens as they are, they are no event: a row
of the message goes to the caller at once, without a task or a message of its own.

A generation alone on its call cannot suffer from what others do, so whatever goes wrong with a shared call
leads there: a generation that has begun is resumed, and one that has not is sent again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import grpc
from google.rpc import status_pb2

from baton.errors import BatonError, Internal, NotAllowed, Unavailable, Unsupported
from baton.security.credentials import UNENCRYPTED, Credentials
from baton.v1 import errors_pb2, inference_pb2
from baton.wire.rows import Heard, event_of, parts_of
from baton.wire.status import from_rpc_error, from_status
from baton.wire.transport import (
    GENERATE,
    GENERATE_MANY,
    GrpcTransport,
    Method,
    Request,
    Response,
    Row,
    TakeRow,
)

TAKES_NEW_S = 10.0
"""So long a call takes new generations, and stays open without any, since opening one costs as much as a
generation's messages. Where a proxy spreads calls over routers, it so spreads these too.
"""
MAX_SHARED_BYTES = 64 * 1024
"""A larger request has a call of its own: one that is too large for a router ends the call that it is on."""
MAX_UNREAD_TOKENS = 8192
"""Beyond this many unread tokens a generation leaves the call, as a router ends a call that is not read."""
_BUSY = errors_pb2.ErrorReason.Name(errors_pb2.ROUTER_BUSY)
"""The router accepts no more generations on a call; one with a call of its own may be accepted."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """When generations share calls, and how many share one."""

    num_alone: int
    """So many at once have calls of their own before one shares a call."""
    most: int
    """With this many on each open shared call, the next generation opens another one."""

    def place(self, num_alone: int, loads: Sequence[int]) -> int | None:
        """Return the shared call that a generation goes to, as its place in `loads`; None for one of its own.

        `num_alone` is how many have calls of their own now, and `loads` how many are on each shared call that
        takes new ones. A place behind the last one, `len(loads)`, is a call to be opened. Among calls with
        room the one with the fewest is chosen: a proxy may have spread them over routers.
        """
        if num_alone < self.num_alone:
            return None
        place = min(range(len(loads)), key=loads.__getitem__, default=0)
        return place if place < len(loads) and loads[place] < self.most else len(loads)


ALWAYS = Sharing(num_alone=0, most=256)
"""For a program that always has many generations, such as a gateway. Routers accept more on each call."""
BEYOND_FEW = Sharing(num_alone=8, most=64)
"""Few streams are as if no calls were shared, and a proxy that spreads calls over routers spreads them. So it
does with the shared calls that many streams need.
"""


class MultiplexedTransport(GrpcTransport):
    """A transport whose generations share calls where there are many at once.

    It costs the router and the client less for each token. Each generation keeps what it has on a call of its
    own: its credential, its errors and its end.
    """

    def __init__(
        self,
        address: str,
        credentials: Credentials = UNENCRYPTED,
        *,
        server_name: str = "",
        sharing: Sharing = ALWAYS,
    ) -> None:
        super().__init__(address, credentials, server_name=server_name)
        self._sharing = sharing
        self._calls: list[_SharedCall] = []
        """The open ones, oldest first."""
        self._num_alone = 0
        """Generations that have calls of their own."""
        self._is_supported = True

    def stream(
        self, method: Method[Request, Response], request: Request, take: TakeRow | None = None
    ) -> AsyncGenerator[Response, None]:
        if isinstance(request, inference_pb2.GenerateRequest):
            return cast("AsyncGenerator[Response, None]", self._generate(request, take))
        if isinstance(request, inference_pb2.ResumeRequest):
            return self._alone(method, request)
        return super().stream(method, request)

    async def close(self) -> None:
        for call in self._calls:
            call.cancel()
        await super().close()

    async def _generate(
        self, request: inference_pb2.GenerateRequest, take: TakeRow | None
    ) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
        begun = self._begun(request, take)
        if begun is not None:
            call, generation = begun
            try:
                while not isinstance(item := await generation.next(), _Over):
                    yield item
            finally:
                call.leave(generation)
            if item.error is not None:
                raise item.error
            if not item.is_unsent:
                return
            self._is_supported = self._is_supported and item.is_supported
        async with aclosing(self._alone(GENERATE, request)) as responses:
            async for response in responses:
                yield response

    async def _alone(
        self, method: Method[Request, Response], request: Request
    ) -> AsyncGenerator[Response, None]:
        """Yield the responses of a generation's own call."""
        self._num_alone += 1
        try:
            async with aclosing(super().stream(method, request)) as responses:
                async for response in responses:
                    yield response
        finally:
            self._num_alone -= 1

    def _begun(
        self, request: inference_pb2.GenerateRequest, take: TakeRow | None
    ) -> tuple[_SharedCall, _Generation] | None:
        """Begin a generation on a shared call, and return both; None if it gets a call of its own."""
        taking = [call for call in self._calls if call.takes_new]
        place = self._sharing.place(self._num_alone, [call.load for call in taking])
        command = None if place is None else self._command(request)
        if place is None or command is None:
            return None
        call = self._opened() if place == len(taking) else taking[place]
        return call, call.begin(command, take)

    def _command(self, request: inference_pb2.GenerateRequest) -> inference_pb2.GenerateManyRequest | None:
        """Return what begins a generation on a shared call; None if it needs a call of its own."""
        if not self._is_supported or request.ByteSize() > MAX_SHARED_BYTES:
            return None
        given = dict(self._credentials.metadata())
        key, tenant = given.pop("authorization", ""), given.pop("x-baton-tenant", "")
        span = given.pop("traceparent", "")
        if given:
            return None
        return inference_pb2.GenerateManyRequest(
            generate=request, credential=key.removeprefix("Bearer "), acting_for=tenant, traceparent=span
        )

    def _opened(self) -> _SharedCall:
        call = _SharedCall(self._channel.stream_stream(*GENERATE_MANY.coded), self.address)
        self._calls.append(call)
        call.reading.add_done_callback(partial(self._ended, call))
        return call

    def _ended(self, call: _SharedCall, _reading: asyncio.Task[None]) -> None:
        self._calls.remove(call)


@dataclass(frozen=True, slots=True)
class _Over:
    """A generation's end on its call."""

    error: BaseException | None = None
    is_unsent: bool = False
    """The call failed for a reason that need not be this generation's: it has to have one of its own."""
    is_supported: bool = True


class _Generation:
    """The events of one generation that have arrived and are unread."""

    def __init__(self, generation_id: int, take: TakeRow | None) -> None:
        self.id = generation_id
        self.has_begun = False
        self._take = take
        self._unread: deque[inference_pb2.GenerateResponse | _Over] = deque()
        self._unread_tokens = 0
        self._waiting: asyncio.Future[None] | None = None
        """Set while the next event is awaited, and done once there is one."""

    def take(self, row: Row) -> bool:
        """Hand a row over. Return False if it has to wait its turn, as an event."""
        has_read = self._waiting is not None and not self._waiting.done()
        return has_read and self._take is not None and self._take(row)

    def put(self, item: inference_pb2.GenerateResponse) -> bool:
        """Add an event. Return False if the caller was too far behind already.

        What arrives at once for a caller who waits does not count: a router sends one who attaches to a
        request, or asked for its prompt's log-probabilities, any number of tokens together.
        """
        self.has_begun = True
        has_room = self._waiting is not None or self._unread_tokens <= MAX_UNREAD_TOKENS
        self._add(item)
        self._unread_tokens += _num_tokens(item)
        return has_room

    def end(self, over: _Over) -> None:
        self._add(over)

    def _add(self, item: inference_pb2.GenerateResponse | _Over) -> None:
        self._unread.append(item)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def next(self) -> inference_pb2.GenerateResponse | _Over:
        if not self._unread:
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        item = self._unread.popleft()
        if not isinstance(item, _Over):
            self._unread_tokens -= _num_tokens(item)
        return item


def _num_tokens(response: inference_pb2.GenerateResponse) -> int:
    event = response.event
    return len(event.tokens.token_ids) + len(event.prompt_logprobs.logprobs)


class _SharedCall:
    """One GenerateMany call. Once it takes no new generations, it ends with its last one."""

    def __init__(self, start: Any, address: str) -> None:
        self._address = address
        self._by_id: dict[int, _Generation] = {}
        self._last_id = 0
        self._commands: asyncio.Queue[inference_pb2.GenerateManyRequest | None] = asyncio.Queue()
        self._is_open = True
        self._is_young = True
        self._timer = asyncio.get_running_loop().call_later(TAKES_NEW_S, self._grow_old)
        self._call = start(self._written())
        self.reading = asyncio.create_task(self._read(), name=f"generations at {address}")

    @property
    def takes_new(self) -> bool:
        return self._is_open and self._is_young

    @property
    def load(self) -> int:
        """How many generations it carries."""
        return len(self._by_id)

    def begin(self, command: inference_pb2.GenerateManyRequest, take: TakeRow | None) -> _Generation:
        self._last_id += 1
        command.id = self._last_id
        generation = self._by_id[command.id] = _Generation(command.id, take)
        self._commands.put_nowait(command)
        return generation

    def leave(self, generation: _Generation) -> None:
        """Receive nothing more of a generation, which may have ended."""
        if generation.id in self._by_id:
            leave = inference_pb2.Leave()
            self._commands.put_nowait(inference_pb2.GenerateManyRequest(id=generation.id, leave=leave))
            self._forget(generation.id)

    def cancel(self) -> None:
        self._call.cancel()

    async def _written(self) -> AsyncIterator[inference_pb2.GenerateManyRequest]:
        while (command := await self._commands.get()) is not None:
            yield command

    async def _read(self) -> None:
        failure: BaseException | None = None
        try:
            async for response in self._call:
                for generation_id, part in parts_of(response):
                    self._hear(generation_id, part)
        except grpc.aio.AioRpcError as error:
            failure = from_rpc_error(error, self._address)
        except asyncio.CancelledError as error:  # the client is closed: what a call of its own would raise
            failure = error
        except ValueError as error:
            failure = Internal(f"{self._address}: a message of GenerateMany has unequal columns: {error}")
        finally:
            self._call.cancel()
            self._timer.cancel()
            self._is_open = False
            # grpc.aio goes on to wait for requests after the router has ended the call.
            self._commands.put_nowait(None)
            for generation in self._by_id.values():
                generation.end(self._over(generation, failure))
            self._by_id.clear()

    def _hear(self, generation_id: int, part: Heard | Row) -> None:
        generation = self._by_id.get(generation_id)
        if generation is None:
            return  # it has left, and this was on its way
        if isinstance(part, Row):
            try:
                if generation.take(part):
                    return
            except Exception as own:  # noqa: BLE001 -- its own caller gets it, and no other on this call
                generation.end(_Over(own))
                self.leave(generation)
                return
            heard: Heard = event_of(part)
        else:
            heard = part
        if isinstance(heard, status_pb2.Status):
            error = from_status(heard, self._address)
            is_full = error.reason == _BUSY and not generation.has_begun
            generation.end(_Over(is_unsent=True) if is_full else _Over(error))
            self._forget(generation_id)
        elif not generation.put(heard):
            slow = f"{MAX_UNREAD_TOKENS} tokens of a generation were unread"
            generation.end(_Over(Unavailable(slow, self._address)))
            self.leave(generation)
        elif heard.event.HasField("finished"):
            generation.end(_Over())
            self._forget(generation_id)

    def _forget(self, generation_id: int) -> None:
        del self._by_id[generation_id]
        self._end_unless_used()

    def _grow_old(self) -> None:
        self._is_young = False
        self._end_unless_used()

    def _end_unless_used(self) -> None:
        if self._is_open and not self._is_young and not self._by_id:
            self._is_open = False
            self._commands.put_nowait(None)

    def _over(self, generation: _Generation, failure: BaseException | None) -> _Over:
        """Return how a generation ends when the call does."""
        if failure is None or isinstance(failure, Unavailable) or not isinstance(failure, BatonError):
            return _Over(failure)
        if generation.has_begun:
            return _Over(Unavailable(f"a call of many generations failed: {failure}", self._address))
        # Generations bring credentials of their own, so whoever demands one of the call is no router.
        return _Over(is_unsent=True, is_supported=not isinstance(failure, Unsupported | NotAllowed))
