"""Many generations over one call: a message for all tokens that arrive together, in place of one for each.

    Generate ──▶ GenerateMany: each call takes new generations for a while, and then ends with its last one
    Resume   ──▶ a call of its own, and so are all others

Where a caller awaits the next event of a generation and can take tokens as they are, they are no event: a row
of the message goes to the caller at once, without a task or a message of its own.

A generation alone on its call cannot suffer from what others do, so whatever goes wrong with a shared call
leads there: a generation that has begun is resumed, and one that has not is sent again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TypeAlias, cast

import grpc
from google.rpc import status_pb2

from baton.errors import BatonError, Internal, Unavailable, Unsupported
from baton.security.credentials import UNENCRYPTED, Credentials
from baton.v1 import errors_pb2, inference_pb2
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

Heard: TypeAlias = "inference_pb2.GenerateResponse | status_pb2.Status"
"""An event of a generation, or the status that ends it in place of its `Finished`."""

MAX_GENERATIONS = 256
"""With this many generations at once, the next one opens another call. Routers accept more on each."""
TAKES_NEW_S = 10.0
"""So long a call takes new generations, and stays open without any, since opening one costs as much as a
generation's messages. Where a proxy spreads calls over routers, it so spreads these too.
"""
MAX_SHARED_BYTES = 64 * 1024
"""A larger request has a call of its own: one that is too large for a router ends the call that it is on."""
MAX_UNREAD_TOKENS = 8192
"""With this many unread tokens a generation leaves the call, as a router ends a call that is not read."""
_BUSY = errors_pb2.ErrorReason.Name(errors_pb2.ROUTER_BUSY)
"""The router accepts no more generations on a call; one with a call of its own may be accepted."""


class MultiplexedTransport(GrpcTransport):
    """A transport whose generations share calls, for clients with many requests at once.

    It costs the router and the client less for each token. Each generation keeps what it has on a call of its
    own: its credential, its errors and its end.
    """

    def __init__(
        self, address: str, credentials: Credentials = UNENCRYPTED, *, server_name: str = ""
    ) -> None:
        super().__init__(address, credentials, server_name=server_name)
        self._calls: set[_SharedCall] = set()
        self._taking: _SharedCall | None = None
        """The call that new generations go to, unless it takes no more."""
        self._is_supported = True

    def stream(
        self, method: Method[Request, Response], request: Request, take: TakeRow | None = None
    ) -> AsyncGenerator[Response, None]:
        if not isinstance(request, inference_pb2.GenerateRequest):
            return super().stream(method, request)
        return cast("AsyncGenerator[Response, None]", self._generate(request, take))

    async def close(self) -> None:
        for call in self._calls:
            call.cancel()
        await super().close()

    async def _generate(
        self, request: inference_pb2.GenerateRequest, take: TakeRow | None
    ) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
        command = self._command(request)
        if command is not None:
            call = self._call()
            generation = call.begin(command, take)
            try:
                while not isinstance(item := await generation.next(), _Over):
                    yield item
            finally:
                call.leave(generation)
            if item.error is not None:
                raise item.error
            if not item.is_unsent:
                return
            self._is_supported = item.is_supported
        async with aclosing(super().stream(GENERATE, request)) as responses:
            async for response in responses:
                yield response

    def _command(self, request: inference_pb2.GenerateRequest) -> inference_pb2.GenerateManyRequest | None:
        """Return what begins a generation on a shared call; None if it needs a call of its own."""
        if not self._is_supported or request.ByteSize() > MAX_SHARED_BYTES:
            return None
        given = dict(self._credentials.metadata())
        key, tenant = given.pop("authorization", ""), given.pop("x-baton-tenant", "")
        if given:
            return None
        return inference_pb2.GenerateManyRequest(
            generate=request, credential=key.removeprefix("Bearer "), acting_for=tenant
        )

    def _call(self) -> _SharedCall:
        if self._taking is None or not self._taking.takes_new:
            start = self._channel.stream_stream(
                GENERATE_MANY.path,
                request_serializer=GENERATE_MANY.request.SerializeToString,
                response_deserializer=GENERATE_MANY.response.FromString,
            )
            self._taking = _SharedCall(start, self._address)
            self._calls.add(self._taking)
            self._taking.reading.add_done_callback(partial(self._ended, self._taking))
        return self._taking

    def _ended(self, call: _SharedCall, _reading: asyncio.Task[None]) -> None:
        self._calls.discard(call)


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
        """Set while everything has been read and the next event is awaited."""

    def take(self, row: Row) -> bool:
        """Hand a row over. Return False if it has to wait its turn, as an event."""
        return self._waiting is not None and self._take is not None and self._take(row)

    def put(self, item: inference_pb2.GenerateResponse) -> bool:
        """Add an event. Return whether there is room for more."""
        self.has_begun = True
        self._add(item)
        self._unread_tokens += _num_tokens(item)
        return self._unread_tokens <= MAX_UNREAD_TOKENS

    def end(self, over: _Over) -> None:
        self._add(over)

    def _add(self, item: inference_pb2.GenerateResponse | _Over) -> None:
        self._unread.append(item)
        if self._waiting is not None:
            if not self._waiting.done():
                self._waiting.set_result(None)
            self._waiting = None

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
        return self._is_open and self._is_young and len(self._by_id) < MAX_GENERATIONS

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
                for generation_id, part in _parts_of(response):
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
            heard: Heard = _response_of(part)
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
        return _Over(is_unsent=True, is_supported=not isinstance(failure, Unsupported))


def events_in(response: inference_pb2.GenerateManyResponse) -> Iterator[tuple[int, Heard]]:
    """Yield a message's events with the ids of their generations, in order.

    Raises `ValueError` if the columns of its tokens do not fit each other.
    """
    for generation_id, part in _parts_of(response):
        yield generation_id, _response_of(part) if isinstance(part, Row) else part


def _parts_of(response: inference_pb2.GenerateManyResponse) -> Iterator[tuple[int, Heard | Row]]:
    """Yield the events and the rows of a message. Raises `ValueError` as `events_in` does."""
    rows = _rows_in(response.tokens)
    taken = 0
    for event in response.events:
        if event.after_rows > len(response.tokens.ids):
            raise ValueError(f"an event after row {event.after_rows} of {len(response.tokens.ids)}")
        if event.after_rows > taken:
            yield from islice(rows, event.after_rows - taken)
            taken = event.after_rows
        if event.WhichOneof("event") == "status":
            yield event.id, status_pb2.Status.FromString(event.status)
        else:
            yield event.id, inference_pb2.GenerateResponse(event=event.generation)
    yield from rows


def _rows_in(rows: inference_pb2.TokenRows) -> Iterator[tuple[int, Row]]:
    # Lists: to iterate over a field of protobuf's costs three times as much.
    token_ids, text, deltas = list(rows.token_ids), rows.text_utf8, list(rows.deltas)
    columns = zip(
        list(rows.ids),
        list(rows.choices),
        list(rows.first_indexes),
        list(rows.num_tokens),
        list(rows.text_lengths),
        list(rows.num_deltas) or [0] * len(rows.ids),
        strict=True,
    )
    token_at = text_at = delta_at = 0
    for generation_id, choice, first_index, num_tokens, text_length, num_deltas in columns:
        token_end, text_end, delta_end = token_at + num_tokens, text_at + text_length, delta_at + num_deltas
        yield (
            generation_id,
            Row(
                choice,
                first_index,
                token_ids[token_at:token_end],
                text[text_at:text_end].decode(),
                deltas[delta_at:delta_end],
            ),
        )
        token_at, text_at, delta_at = token_end, text_end, delta_end
    if (token_at, text_at, delta_at) != (len(token_ids), len(text), len(deltas)):
        raise ValueError(
            f"{len(token_ids)} tokens and {len(text)} bytes, with {len(deltas)} deltas; "
            f"{token_at}, {text_at} and {delta_at} have rows"
        )


def _response_of(row: Row) -> inference_pb2.GenerateResponse:
    response = inference_pb2.GenerateResponse()
    tokens = response.event.tokens
    tokens.choice = row.choice
    tokens.first_index = row.first_index
    tokens.token_ids.extend(row.token_ids)
    tokens.text = row.text
    tokens.deltas.extend(row.deltas)
    return response
