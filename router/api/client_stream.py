"""Between the core and one client's call: a bounded buffer that merges what the client has not taken yet."""

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
"""More than most generations; a client this far behind does not read."""


@dataclass(slots=True)
class TokenRun:
    """Consecutive tokens of one choice."""

    choice: int
    first_index: int
    token_ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


StreamItem = (
    TellAccepted
    | TellQueued
    | TellPromptLogprobs
    | TokenRun
    | TellChoiceFinished
    | TellFinished
    | TellLeaving
    | TellRetrying
)


class ClientStream:
    """What one call is still to hear, in order.

    Tokens of a choice that wait already are joined by the next ones: a client that lags gets fewer and larger
    events, and `max_pending_tokens` bounds what is held for it.
    """

    def __init__(self, max_pending_tokens: int = MAX_PENDING_TOKENS) -> None:
        self._max_pending_tokens = max_pending_tokens
        self._items: list[StreamItem] = []
        self._runs: dict[int, TokenRun] = {}
        self._pending_tokens = 0
        self._error: RouterError | None = None
        self.finished: TellFinished | None = None
        self.accepted = False
        self._waiter: asyncio.Future[None] | None = None
        self._waited = False

    @property
    def pending_tokens(self) -> int:
        return self._pending_tokens

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
        """Add a token; False when the client is too far behind and its call is over.

        A `free` one (a replay of what is held anyway) is not counted.
        """
        if self._error is not None:
            return True
        run = self._runs.get(choice)
        if run is None:
            run = self._runs[choice] = TokenRun(choice, index)
            self._items.append(run)
        run.token_ids.append(token_id)
        if text:
            run.texts.append(text)
        if logprobs is not None:
            run.logprobs.append(logprobs)
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
        """Whether something waits that waited already when this was last asked."""
        waited, self._waited = self._waited, bool(self._items)
        return waited and self._waited

    def fail(self, error: RouterError) -> None:
        """The call ends with an error, after nothing more."""
        self._items.clear()
        self._runs.clear()
        self._error = error
        self._wake()

    async def take(self) -> list[StreamItem]:
        """All that waits, once something does. Raises the error that ended the call."""
        while not self._items:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        items, self._items = self._items, []
        self._waited = False
        self._runs.clear()
        self._pending_tokens = 0
        return items

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
