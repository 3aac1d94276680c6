"""A bounded buffer between the core and one client's call, which merges tokens that wait."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from router.core.actions import (
    TellAccepted,
    TellChoiceFinished,
    TellFinished,
    TellLeaving,
    TellPromptLogprobs,
    TellQueued,
    TellRetrying,
)
from router.core.session.session import TokenLogprobs
from router.errors import Overloaded, Reason, RouterError

MAX_PENDING_TOKENS = 8192
"""Longer than most generations: a client this far behind does not read."""


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
    events. `max_pending_tokens` bounds what waits for it.
    """

    def __init__(self, max_pending_tokens: int = MAX_PENDING_TOKENS) -> None:
        self._max_pending_tokens = max_pending_tokens
        self._items: list[StreamItem] = []
        self._batches: dict[int, TokenBatch] = {}
        self._pending_tokens = 0
        self._error: RouterError | None = None
        self.finished: TellFinished | None = None
        self.accepted = False
        self._waiter: asyncio.Future[None] | None = None
        self._had_items = False

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
        if self._error is not None:
            return True
        batch = self._batches.get(choice)
        if batch is None:
            batch = self._batches[choice] = TokenBatch(choice, index)
            self._items.append(batch)
        batch.token_ids.append(token_id)
        if text:
            batch.texts.append(text)
        if logprobs is not None:
            batch.logprobs.append(logprobs)
        if not free:
            self._pending_tokens += 1
            if self._pending_tokens > self._max_pending_tokens:
                self.fail(
                    Overloaded(
                        Reason.READER_TOO_SLOW,
                        f"the client reads too slowly: over {self._max_pending_tokens} tokens wait for it",
                        limit=self._max_pending_tokens,
                    )
                )
                return False
        if self._waiter is not None:
            self._wake()
        return True

    def is_stalled(self) -> bool:
        """Return whether something has waited since the last call of this method."""
        had_items, self._had_items = self._had_items, bool(self._items)
        return had_items and self._had_items

    def fail(self, error: RouterError) -> None:
        """Drop what waits, and end the call with an error."""
        self._items.clear()
        self._batches.clear()
        self._error = error
        self._wake()

    async def take(self) -> list[StreamItem]:
        """Wait for events and take them all. Raises the error that ended the call."""
        while not self._items:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        items, self._items = self._items, []
        self._had_items = False
        self._batches.clear()
        self._pending_tokens = 0
        return items

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
