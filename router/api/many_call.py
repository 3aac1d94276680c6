"""One GenerateMany call: a task for each generation on it, and one writer for all.

    generate, resume ──▶ task: check, tokenise, submit ──▶ stream ──▶ writer: one message for all that waits
    leave, hang-up ────▶ the task is cancelled, so its stream closes as that of a broken call does

A generation's task waits until the writer has taken its last event. So it costs nothing per token, and a bill
and a stream are held and freed by the same code as those of a call of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import structlog

from baton.v1 import inference_pb2
from router.api.convert import check_end, put_deltas, put_event
from router.api.error_interceptor import path_prefix
from router.api.status import status_to_pb
from router.auth.auth import TENANT, Auth
from router.auth.principal import set_caller
from router.core.model.actions import TellFinished, TellPromptLogprobs
from router.errors import (
    InternalError,
    MalformedMessage,
    Overloaded,
    Reason,
    RouterError,
    Unavailable,
    ValidationError,
)
from router.links.client_stream import ClientStream, Outbox, RowColumns, StreamItem, TokenBatch
from router.outputs import OutputReader
from runtime.rpc.handlers import Context, Unreadable

Open = Callable[
    [inference_pb2.GenerateRequest, Context, inference_pb2.ResumeRequest | None, Outbox, str],
    AbstractAsyncContextManager[tuple[ClientStream, OutputReader]],
]
"""Submit a generation, whose events then come through the outbox."""
MAX_MESSAGE = 65_536
"""A message with this many numbers takes no further stream: clients accept messages of limited size."""
MAX_UNWRITTEN = 1024
"""With this many ends to write, no further request is read: the client does not read either."""


@dataclass(slots=True, eq=False)
class _Generation:
    id: int
    ended: asyncio.Future[None]
    """Done when the last event is in a message; has the error that ended the stream."""
    reader: OutputReader | None = None
    first_written_at: float | None = None
    task: asyncio.Task[None] | None = None


class ManyCall:
    """The generations of one call. `count` counts refusals that no other part of the router does."""

    def __init__(
        self,
        open_stream: Open,
        auth: Auth | None,
        max_generations: int,
        now: Callable[[], float],
        count: Callable[[RouterError], None],
    ) -> None:
        self._open_stream = open_stream
        self._auth = auth
        self._max_generations = max_generations
        self._now = now
        self._count = count
        self._outbox = Outbox()
        self._last_id = -1
        self._by_id: dict[int, _Generation] = {}
        self._by_stream: dict[ClientStream, _Generation] = {}
        self._unwritten: list[tuple[int, bytes]] = []
        """Generations that ended with an error, and its status."""
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._leaves = False

    def leave(self) -> None:
        """End the call after its last generation: its client may keep it open for later ones."""
        self._leaves = True
        self._outbox.wake()

    async def serve(
        self,
        requests: AsyncIterator[inference_pb2.GenerateManyRequest | Unreadable],
        context: Context,
    ) -> None:
        """Serve until the client has ended its side and every generation has ended, or the call breaks."""
        reading = asyncio.create_task(self._read(requests, context))
        reading.add_done_callback(lambda _: self._outbox.wake())
        try:
            await self._write(reading, context)
        finally:
            tasks = [reading, *(each.task for each in self._by_id.values() if each.task is not None)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # In

    async def _read(
        self,
        requests: AsyncIterator[inference_pb2.GenerateManyRequest | Unreadable],
        context: Context,
    ) -> None:
        async for request in requests:
            if isinstance(request, Unreadable):
                raise MalformedMessage(str(request))
            self._take(request, context)
            await self._has_room.wait()

    def _take(self, request: inference_pb2.GenerateManyRequest, context: Context) -> None:
        match request.WhichOneof("command"):
            case None:
                raise ValidationError("command", "", "generate, resume or leave")
            case "leave" if request.id > self._last_id:
                raise ValidationError("id", request.id, "the id of a generation that has begun on this call")
            case "leave":
                known = self._by_id.get(request.id)
                if known is not None and known.task is not None:
                    known.task.cancel()
            case _ if request.id <= self._last_id:
                raise ValidationError(
                    "id", request.id, f"more than {self._last_id}, the greatest id so far on this call"
                )
            case _:
                self._last_id = request.id
                self._begin(request, context)

    def _begin(self, request: inference_pb2.GenerateManyRequest, context: Context) -> None:
        if len(self._by_id) >= self._max_generations:
            error = Overloaded(
                Reason.ROUTER_BUSY,
                f"the call carries {self._max_generations} generations already; come back when one ends",
                retry_after_s=1.0,
                limit=self._max_generations,
            )
            self._count(error)
            self._end(request.id, status_to_pb(error).SerializeToString())
            return
        generation = _Generation(request.id, asyncio.get_running_loop().create_future())
        self._by_id[request.id] = generation
        generation.task = asyncio.create_task(self._run(generation, request, context))
        # A task that is cancelled before it runs ends without having run at all.
        generation.task.add_done_callback(lambda _: self._forget(generation))

    async def _run(
        self, generation: _Generation, request: inference_pb2.GenerateManyRequest, context: Context
    ) -> None:
        resume = request.resume if request.HasField("resume") else None
        message = request.generate if resume is None else resume.request
        try:
            self._authenticate(request, context)
            async with self._open_stream(message, context, resume, self._outbox, request.traceparent) as (
                stream,
                generation.reader,
            ):
                self._by_stream[stream] = generation
                try:
                    await generation.ended
                finally:
                    del self._by_stream[stream]
                    stream.drop()
        except RouterError as error:
            prefix = path_prefix(resume or message, error)
            self._end(generation.id, status_to_pb(error, prefix).SerializeToString())
        except Exception as error:  # noqa: BLE001 -- the caller learns of every failure
            structlog.get_logger().exception("call_failed", method="GenerateMany", user=message.user)
            internal = InternalError(error)
            self._count(internal)
            self._end(generation.id, status_to_pb(internal).SerializeToString())

    def _forget(self, generation: _Generation) -> None:
        del self._by_id[generation.id]
        self._outbox.wake()

    def _authenticate(self, request: inference_pb2.GenerateManyRequest, context: Context) -> None:
        """Set the generation's caller by its own credential, or by the call's, which may have expired."""
        if self._auth is None:
            return
        metadata = dict(context.invocation_metadata() or ())
        if request.credential:
            metadata["authorization"] = f"Bearer {request.credential}"
            metadata.pop(TENANT, None)
        if request.acting_for:
            metadata[TENANT] = request.acting_for
        try:
            set_caller(self._auth.authenticate(metadata.items()))
        except RouterError as error:
            self._count(error)
            raise

    # Out

    def _end(self, generation_id: int, status: bytes) -> None:
        self._unwritten.append((generation_id, status))
        if len(self._unwritten) >= MAX_UNWRITTEN:
            self._has_room.clear()
        self._outbox.wake()

    async def _write(self, reading: asyncio.Task[None], context: Context) -> None:
        """Write one message for all that has arrived, again and again. This is the token path."""
        while True:
            rows = self._rows()
            if rows.size:
                await context.write(rows.message())
            elif self._leaves and not self._by_id and self._last_id >= 0 and not reading.done():
                why = "this router is shutting down, and this call carries no generation"
                raise Unavailable(Reason.ROUTER_LEAVING, why)
            elif not reading.done() or (self._by_id and reading.exception() is None):
                await self._outbox.wait()
            else:
                reading.result()
                return

    def _rows(self) -> Rows:
        rows = Rows(self._outbox.take_rows())
        while rows.size < MAX_MESSAGE and (stream := self._outbox.next()) is not None:
            generation = self._by_stream.get(stream)
            if generation is not None and not generation.ended.done():
                self._move(stream, generation, rows)
        for generation_id, status in self._unwritten:
            rows.end(generation_id, status)
        self._unwritten.clear()
        self._has_room.set()
        return rows

    def _move(self, stream: ClientStream, generation: _Generation, rows: Rows) -> None:
        """Move what waits in a stream to the message. What cannot be told ends its own generation alone."""
        assert generation.reader is not None, "an open stream has one"
        try:
            now = self._now()
            for item in stream.take_now():
                if isinstance(item, TellFinished):
                    check_end(item)
                if generation.first_written_at is None and isinstance(item, TokenBatch):
                    generation.first_written_at = now
                    if not generation.reader.has_deltas:
                        stream.row_id = generation.id
                rows.add(generation.id, item, generation.reader, generation.first_written_at, now)
                if isinstance(item, TellFinished):
                    generation.ended.set_result(None)
        except Exception as error:  # noqa: BLE001 -- its task tells its caller
            generation.ended.set_exception(error)


# What has arrived for many generations as one message, its tokens as columns


class Rows:
    """The next message of a call, which begins with rows of one token."""

    def __init__(self, first: RowColumns) -> None:
        self._message = inference_pb2.GenerateManyResponse()
        self._ids = first.ids
        self._choices = first.choices
        self._first_indexes = first.indexes
        self._token_ids = first.token_ids
        self._texts = first.texts
        self.size = len(first.ids)
        """How many numbers it has, about."""
        self._num_tokens = [1] * self.size
        self._num_deltas = [0] * self.size

    def add(
        self,
        generation_id: int,
        item: StreamItem,
        reader: OutputReader,
        first_written_at: float | None,
        now: float,
    ) -> None:
        """Add tokens or another event of a generation, as `put_event` does."""
        if isinstance(item, TokenBatch) and not item.logprobs:
            text = "".join(item.texts)
            num_deltas = 0
            if reader.has_deltas:
                deltas = reader.read(item.choice, text)
                put_deltas(self._message.tokens.deltas, deltas)
                num_deltas = len(deltas)
            self._ids.append(generation_id)
            self._choices.append(item.choice)
            self._first_indexes.append(item.first_index)
            self._num_tokens.append(len(item.token_ids))
            self._token_ids += item.token_ids
            self._texts.append(text.encode())
            self._num_deltas.append(num_deltas)
            self.size += len(item.token_ids) + num_deltas
        else:
            event = self._message.events.add(id=generation_id, after_rows=len(self._ids))
            put_event(event.generation, item, reader, first_written_at, now)
            self.size += _size(item)

    def end(self, generation_id: int, status: bytes) -> None:
        """Add a generation's end with an error."""
        self._message.events.add(id=generation_id, after_rows=len(self._ids), status=status)
        self.size += 1

    def message(self) -> inference_pb2.GenerateManyResponse:
        """Return the message."""
        if self._ids:
            tokens = self._message.tokens
            tokens.ids.extend(self._ids)
            tokens.choices.extend(self._choices)
            tokens.first_indexes.extend(self._first_indexes)
            tokens.num_tokens.extend(self._num_tokens)
            tokens.text_lengths.extend(map(len, self._texts))
            tokens.token_ids.extend(self._token_ids)
            tokens.text_utf8 = b"".join(self._texts)
            if tokens.deltas:
                tokens.num_deltas.extend(self._num_deltas)
        return self._message


def _size(item: StreamItem) -> int:
    match item:
        case TokenBatch():
            return sum(2 + 2 * len(logprobs.top_token_ids) for logprobs in item.logprobs)
        case TellPromptLogprobs():
            return len(item.told.logprobs) * (1 + 2 * item.told.num_top)
    return 1
