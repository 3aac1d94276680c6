"""A bounded buffer between the core and one client's call, which merges tokens that wait."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from router.core.model.actions import (
    TellAccepted,
    TellChoiceFinished,
    TellFinished,
    TellLeaving,
    TellPromptLogprobs,
    TellQueued,
    TellRetrying,
)
from router.core.model.session import TokenLogprobs
from router.errors import Overloaded, Reason, RouterError

MAX_PENDING_TOKENS = 8192
"""Longer than most generations: a client this far behind does not read."""
MAX_OUTBOX_TOKENS = 131_072
"""The same for all generations of one call."""


@dataclass(slots=True)
class TokenBatch:
    """Consecutive tokens of one choice that go to the client in one message."""

    choice: int
    first_index: int
    token_ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


Told = (
    TellAccepted
    | TellQueued
    | TellPromptLogprobs
    | TellChoiceFinished
    | TellFinished
    | TellLeaving
    | TellRetrying
)
StreamItem = Told | TokenBatch


class ClientStream:
    """The events that wait for one call, in order.

    New tokens join those of the same choice that still wait, so a client that lags gets fewer and larger
    events. `max_pending_tokens` bounds what waits for it. The reader of an `outbox` learns there of events
    and takes them by `take_now`; without an outbox, `take` waits for them.
    """

    def __init__(self, max_pending_tokens: int = MAX_PENDING_TOKENS, outbox: Outbox | None = None) -> None:
        self._max_pending_tokens = max_pending_tokens
        self._outbox = outbox
        self._items: list[StreamItem] = []
        self._batches: dict[int, TokenBatch] = {}
        self._pending_tokens = 0
        self._error: RouterError | None = None
        self.finished: TellFinished | None = None
        self.accepted = False
        self._waiter: asyncio.Future[None] | None = None
        self._had_items = False
        self.row_id: int | None = None
        """The id of its rows in the outbox. Its reader sets it once tokens need nothing but a row."""
        self.row_in = -1
        """The number of the message that has its newest row."""

    def push(self, item: StreamItem) -> None:
        """Add an event."""
        if self._error is None:
            if isinstance(item, TellFinished):
                self.finished = item
            elif isinstance(item, TellAccepted):
                self.accepted = True
            self._items.append(item)
            self._wake()

    def push_token(
        self, choice: int, index: int, token_id: int, text: str, logprobs: TokenLogprobs | None, *, free: bool
    ) -> bool:
        """Add a token. Return False if the client is too far behind and its call has failed.

        A `free` token does not count: it is replayed from what the session holds anyway.
        """
        if self.row_id is not None and not self._items and logprobs is None and self._error is None:
            assert self._outbox is not None, "only its streams have ids of rows"
            if self._outbox.add_row(self, choice, index, token_id, text):
                return True
        if self._error is not None:
            return True
        batch = self._batches.get(choice)
        if batch is None:
            batch = self._batches[choice] = TokenBatch(choice, index)
            self._items.append(batch)
            self._wake()
        batch.token_ids.append(token_id)
        if text:
            batch.texts.append(text)
        if logprobs is not None:
            batch.logprobs.append(logprobs)
        if not free:
            self._pending_tokens += 1
            if self._pending_tokens > self._max_pending_tokens:
                self._fail_slow(self._max_pending_tokens)
                return False
            if self._outbox is not None and not self._outbox.add_token():
                self._fail_slow(self._outbox.max_tokens)
                return False
        return True

    def _fail_slow(self, limit: int) -> None:
        why = f"the client reads too slowly: over {limit} tokens wait for it"
        self.fail(Overloaded(Reason.READER_TOO_SLOW, why, limit=limit))

    def is_stalled(self) -> bool:
        """Return whether something has waited since the last call of this method."""
        had_items, self._had_items = self._had_items, bool(self._items)
        return had_items and self._had_items

    def fail(self, error: RouterError) -> None:
        """Drop what waits, and end the call with an error."""
        self.drop()
        self._error = error
        self._wake()

    def drop(self) -> None:
        """Drop what waits."""
        self._items.clear()
        self._taken()

    async def take(self) -> list[StreamItem]:
        """Wait for events and take them all. Raises the error that ended the call."""
        while not self._items and self._error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self.take_now()

    def take_now(self) -> list[StreamItem]:
        """Take all events. Raises the error that ended the call."""
        if self._error is not None:
            raise self._error
        items, self._items = self._items, []
        self._had_items = False
        self._taken()
        return items

    def _taken(self) -> None:
        self._batches.clear()
        if self._outbox is not None:
            self._outbox.taken(self._pending_tokens)
        self._pending_tokens = 0

    def _wake(self) -> None:
        if self._outbox is not None:
            self._outbox.add(self)
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


@dataclass(slots=True)
class RowColumns:
    """Tokens of many generations, one of each."""

    ids: list[int] = field(default_factory=list)
    choices: list[int] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)


class Outbox:
    """The streams of a call that carries many generations. Bounds what waits in all of them.

    The first token of a stream for the next message is a row of `rows` already, if nothing of the stream
    waits. Later ones wait in the stream, where they become one row.
    """

    def __init__(self, max_tokens: int = MAX_OUTBOX_TOKENS) -> None:
        self.max_tokens = max_tokens
        self._rows = RowColumns()
        self._message = 0
        """The number of the message that `rows` are for."""
        self._num_tokens = 0
        self._ready: dict[ClientStream, None] = {}
        """Streams with something to take, in the order in which they got it."""
        self._waiter: asyncio.Future[None] | None = None

    def add(self, stream: ClientStream) -> None:
        """Note that a stream has something to take."""
        self._ready[stream] = None
        self.wake()

    def add_row(self, stream: ClientStream, choice: int, index: int, token_id: int, text: str) -> bool:
        """Add a stream's token to the next message. Return False if the stream has a row there."""
        if stream.row_in == self._message:
            return False
        stream.row_in = self._message
        rows = self._rows
        rows.ids.append(stream.row_id)  # type: ignore[arg-type]  # the stream has one
        rows.choices.append(choice)
        rows.indexes.append(index)
        rows.token_ids.append(token_id)
        rows.texts.append(text.encode())
        if self._waiter is not None:
            self.wake()
        return True

    def take_rows(self) -> RowColumns:
        """Take the rows of the next message."""
        rows, self._rows = self._rows, RowColumns()
        self._message += 1
        return rows

    def add_token(self) -> bool:
        """Count a token that waits. Return False if there are too many."""
        self._num_tokens += 1
        return self._num_tokens <= self.max_tokens

    def taken(self, num_tokens: int) -> None:
        """Count tokens that wait no longer."""
        self._num_tokens -= num_tokens

    def next(self) -> ClientStream | None:
        """Return the stream that has been ready for longest, until it has more; None if none is."""
        stream = next(iter(self._ready), None)
        if stream is not None:
            del self._ready[stream]
        return stream

    async def wait(self) -> None:
        """Wait until `wake` is called, or something waits for the next message."""
        if self._ready or self._rows.ids:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        """End the reader's wait."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
