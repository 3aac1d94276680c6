"""One generation: an iterator of events that survives routers.

    Generate ──break before any event──▶ Generate again: the same request_id, so nothing is done twice
        ├─────a caller before resumed──▶ Resume: its session + 1 and no tokens, which takes the request back
        └─────break after an event─────▶ Resume: session + 1 and the tokens received, on any router
              or the router is leaving

Every call after a break has the next session number, so that a router which wakes late is refused. A router
that takes the request back from an earlier caller counts on, and `Retrying` says so. Events that a resumed
session repeats are not passed to the caller again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Self, TypeVar

from baton.errors import (
    BatonError,
    GenerationFailed,
    Internal,
    StreamCorrupt,
    Superseded,
    TimedOut,
    Unavailable,
)
from baton.parsing import EventParser, ParsedEvent
from baton.progress import Progress, completion_of
from baton.routers import Backoff, Routers
from baton.types import Accepted, Completion, Event, Finished, FinishReason, Timeout
from baton.types.deltas import Delta
from baton.v1 import inference_pb2
from baton.wire.convert import deltas_from_pb, event_from_pb, resume_to_pb
from baton.wire.status import CallCrashed
from baton.wire.transport import GENERATE, RESUME, Row, Transport

T = TypeVar("T")

Relay = Callable[[str, Sequence[Delta], int], bool]
"""Takes the text of tokens, what they say with `Accepted.has_deltas`, and their number. Returns False if they
have to be an event.
"""

MAX_CRASHES = 3
"""After so many crashed calls without a token between, the generation itself is assumed to crash routers."""
CRASH_REST_S = 3.0
"""The rest before the last of these. A machine without memory or descriptors, this one too, crashes calls at
once, and may have them again in a moment.
"""
# Errors of this side, after which the fleet still runs the generation. All others come from the fleet.
_STILL_RUNNING = (TimedOut, StreamCorrupt, Internal, Unavailable)


class GenerationStream:
    """The events of one generation, to be iterated once.

    Leaving early calls `abandon`, which ends the generation on the fleet: at once if it was entered with
    `async with`, else when the interpreter drops the iterator. `resumes` counts the resumed breaks,
    `retries` the calls sent again before any event.
    """

    def __init__(
        self,
        request: inference_pb2.GenerateRequest,
        routers: Routers,
        timeout: Timeout,
        abandon: Callable[[str], None] | None,
    ) -> None:
        self.request_id = request.request_id
        self.resumes = 0
        self.retries = 0
        self._request = request
        self._num_choices = max(1, request.sampling.n)
        self._routers = routers
        self._timeout = timeout
        self._abandon = abandon
        self._progress = Progress(self._num_choices)
        self._relay: Relay | None = None
        self._entered: AsyncGenerator[Event, None] | None = None
        self._begun = False

    def relay_to(self, relay: Relay) -> None:
        """Hand tokens to `relay` in place of their `Tokens` event, as long as the next event is awaited.

        That costs much less, and is possible where generations share calls, for one choice, without
        log-probabilities and without a limit of time. Otherwise all tokens are events.
        """
        if self._num_choices == 1 and not _Clock(self._timeout).is_limited:
            self._relay = relay

    # Declared as a generator, because the blocking client closes it.
    def __aiter__(self) -> AsyncGenerator[Event, None]:  # noqa: PYI058
        # Without `async with`, only the caller's loop refers to it: a `break` drops and so closes it.
        return self._entered if self._entered is not None else self._begin()

    async def __aenter__(self) -> Self:
        self._entered = self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._entered is not None
        await self._entered.aclose()

    async def parsed(self) -> AsyncGenerator[ParsedEvent, None]:
        """Yield the events with what the model says in place of its tokens: content, reasoning and calls."""
        parser = EventParser()
        async with aclosing(aiter(self)) as events:
            async for event in events:
                for said in parser.feed(event):
                    yield said

    async def collect(self) -> Completion:
        """Return the whole generation. Raises `GenerationFailed` if the fleet could not complete it."""
        async with aclosing(self._begin()) as events:
            received = [event async for event in events]
        completion = completion_of(received, self._num_choices, self.resumes)
        if any(choice.finish_reason is FinishReason.FAILED for choice in completion.choices):
            raise GenerationFailed(completion)
        return completion

    def _begin(self) -> AsyncGenerator[Event, None]:
        if self._begun:
            raise RuntimeError("a generation can be iterated only once")
        self._begun = True
        return self._events()

    async def _events(self) -> AsyncGenerator[Event, None]:
        over = False
        try:
            async with aclosing(self._sessions()) as events:
                async for event in events:
                    over = isinstance(event, Finished)
                    yield event
        except BatonError as error:
            over = not isinstance(error, _STILL_RUNNING)
            raise
        finally:
            if not over and self._abandon is not None:
                self._abandon(self.request_id)

    async def _sessions(self) -> AsyncGenerator[Event, None]:
        progress, clock = self._progress, _Clock(self._timeout)
        backoff = Backoff(self._timeout.connect_s, self._routers)
        breaks = _Breaks(backoff)
        while True:
            router = await self._routers.next()
            try:
                async with aclosing(self._session(router, progress, clock)) as events:
                    async for event in events:
                        if not isinstance(event, Accepted):  # the fleet does something
                            backoff.reset()
                        yield event
                        if isinstance(event, Finished):
                            return
                raise Unavailable("the stream ended before the generation did", router.address)
            except _RouterLeaves:
                self._routers.failed(router)
            except (Unavailable, CallCrashed) as error:
                self._routers.failed(router)
                pause = breaks.wait_after(error, router.address, progress.num_tokens)
                await clock.limit(pause, has_tokens=progress.has_tokens)
            except Superseded as error:
                if not progress.take_back(error.session):
                    raise
                continue
            progress.next_session()
            if not progress.started:
                self.retries += 1

    async def _session(
        self, router: Transport, progress: Progress, clock: _Clock
    ) -> AsyncGenerator[Event, None]:
        async with aclosing(self._call(router, progress)) as responses:
            is_continued = progress.session == 0
            while True:
                arriving = anext(responses, None)
                response = await (
                    clock.limit(arriving, has_tokens=progress.has_tokens) if clock.is_limited else arriving
                )
                if response is None:
                    return
                message = response.event
                if not is_continued:
                    is_continued = True
                    self.resumes += 1
                kind = message.WhichOneof("event")
                if kind is None:
                    continue  # an event that this client does not know
                if kind == "leaving":
                    if self._routers.has_other(router):
                        raise _RouterLeaves
                    continue  # the only router serves on for as long as it can
                if kind == "retrying":
                    progress.failed_attempts = message.retrying.failed_attempts
                    progress.session = max(progress.session, message.retrying.session)
                    continue
                event = event_from_pb(message)
                if progress.admit(event):
                    yield event
                elif isinstance(event, Accepted) and progress.lacks_deltas(event):
                    why = "the router does not read tool calls and reasoning, as the one before did"
                    raise Unavailable(why, router.address)

    def _call(
        self, router: Transport, progress: Progress
    ) -> AsyncGenerator[inference_pb2.GenerateResponse | inference_pb2.ResumeResponse, None]:
        if progress.session == 0:
            return router.stream(GENERATE, self._request, self._take)
        resume = resume_to_pb(
            self._request,
            progress.session,
            progress.received(),
            progress.failed_attempts,
            progress.num_prompt_logprobs,
        )
        return router.stream(RESUME, resume)

    def _take(self, row: Row) -> bool:
        relay, progress = self._relay, self._progress
        if relay is None or row.choice or not progress.goes_on(row.first_index):
            return False
        deltas = deltas_from_pb(row.deltas) if row.deltas else ()
        if not relay(row.text, deltas, len(row.token_ids)):
            return False
        progress.extend(row.token_ids)
        return True


class _RouterLeaves(Exception):
    """The router asked to resume the generation at another router."""


class _Breaks:
    """Waits after each break of a generation, and counts crashed calls, since the newest token."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._crashes = 0
        self._num_tokens = 0

    async def wait_after(self, error: Unavailable | CallCrashed, address: str, num_tokens: int) -> None:
        """Wait for the next call. Raises `Unavailable` after too long, `Internal` after too many crashes."""
        if num_tokens > self._num_tokens:
            self._num_tokens, self._crashes = num_tokens, 0
            self._backoff.reset()
        if not isinstance(error, CallCrashed):
            await self._backoff.wait_after(error)
            return
        self._crashes += 1
        if self._crashes == MAX_CRASHES:
            raise Internal(str(error)) from error
        rest_s = CRASH_REST_S if self._crashes == MAX_CRASHES - 1 else 0.0
        await self._backoff.wait_after(Unavailable(str(error), address), rest_s)


class _Clock:
    """Limits every wait to what is left of the caller's `Timeout`."""

    def __init__(self, timeout: Timeout) -> None:
        self._timeout = timeout
        self._began = time.monotonic()
        self.is_limited = timeout.total_s is not None or timeout.first_token_s is not None

    async def limit(self, work: Awaitable[T], *, has_tokens: bool) -> T:
        limits = [("total_s", self._timeout.total_s)]
        if not has_tokens:
            limits.append(("first_token_s", self._timeout.first_token_s))
        stated = [(limit_s, phase) for phase, limit_s in limits if limit_s is not None]
        if not stated:
            return await work
        limit_s, phase = min(stated)
        try:
            async with asyncio.timeout(max(0.0, self._began + limit_s - time.monotonic())):
                return await work
        except TimeoutError:
            raise TimedOut(phase, limit_s) from None
