"""Generations that run for one HTTP request: accepted before the response begins."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from baton.errors import Internal, InvalidRequest
from baton.stream import GenerationStream
from baton.types import Accepted, Completion, Event, OutputFormat, Program, Quote, Sampling, Slo, Stop, Tokens
from baton.types.chat import Prompt
from gateway.serving.direct import Line, Say, relay
from gateway.serving.fleet import FleetClient, ServedModel, not_served
from gateway.serving.request_log import raise_if_over, record

T = TypeVar("T")

MAX_USER_CHARACTERS = 128
"""The contract's limit for the name of a caller's own user."""
ID_HEADER = "idempotency-key"
"""The header with the request's id. A caller who sends the same request again receives the same tokens."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation to ask of the fleet."""

    prompt: Prompt
    sampling: Sampling
    stop: Stop
    slo: Slo
    request_id: str = ""
    truncate_prompt_tokens: int | None = None
    output_format: OutputFormat | None = None
    cancel_when_closed: bool = True
    """If false, the fleet goes on for a while when the connection breaks, since the caller may ask again."""
    user: str = ""
    """The caller's own user, for the fleet's logs."""
    model: ServedModel | None = None
    """The model that the HTTP request names, perhaps with a LoRA adapter."""
    program: Program | None = None
    """The program that it is a call of."""

    def send(self, fleet: FleetClient) -> GenerationStream:
        return fleet.sdk.generate(
            self.prompt,
            request_id=self.request_id,
            user=self.user,
            program=self.program,
            cancel_when_closed=self.cancel_when_closed,
            **self._options(),
        )

    async def quote(self, fleet: FleetClient) -> Quote:
        """Return the promise that it would get now."""
        return await fleet.sdk.quote(self.prompt, **self._options())

    def _options(self) -> dict[str, Any]:
        return {
            "sampling": self.sampling,
            "stop": self.stop,
            "slo": self.slo,
            "truncate_prompt_tokens": self.truncate_prompt_tokens,
            "output_format": self.output_format,
            "adapter": "" if self.model is None else self.model.adapter,
        }


class Events:
    """The events of an accepted generation, whose tokens are counted for the HTTP request."""

    def __init__(self, events: AsyncGenerator[Event, None]) -> None:
        self._events = events
        self._record = record.get()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        try:
            event = await self._events.__anext__()
        except asyncio.CancelledError:
            raise_if_over()
            raise
        if type(event) is Tokens and self._record is not None:
            self._record.relayed(len(event.token_ids))
        return event

    async def aclose(self) -> None:
        await self._events.aclose()


class Running:
    """An accepted generation. `close` cancels it unless it has finished."""

    def __init__(
        self, accepted: Accepted, stream: GenerationStream, events: AsyncGenerator[Event, None]
    ) -> None:
        self.accepted = accepted
        self.events = Events(events)
        self._stream = stream

    @classmethod
    async def begin(cls, fleet: FleetClient, generation: Generation) -> Running:
        """Return once the fleet has accepted; raises `BatonError`."""
        stream = generation.send(fleet)
        events = aiter(stream)
        first = await _found(fleet, generation, anext(events))
        if not isinstance(first, Accepted):
            await events.aclose()
            raise Internal(f"the stream began with {type(first).__name__}")
        return cls(first, stream, events)

    def write_directly(self, line: Line, say: Say) -> None:
        """Have tokens written to `line` as soon as they come, wherever that is possible."""
        accepted = self.accepted
        if accepted.has_deltas or not (accepted.tool_format or accepted.reasoning_format):
            relay(self._stream, line, say, has_deltas=accepted.has_deltas)

    @property
    def resumes(self) -> int:
        return self._stream.resumes

    async def close(self) -> None:
        await self.events.aclose()


async def _found(fleet: FleetClient, generation: Generation, call: Awaitable[T]) -> T:
    """Return what a call returns. Raises `NotFound` for an adapter that the fleet no longer has."""
    try:
        return await call
    except InvalidRequest as error:
        if error.field == "adapter" and generation.model is not None:
            name, served = generation.model.name, await fleet.told_models()
            if name not in served:
                raise not_served(name, served) from error
        raise


async def begin_all(fleet: FleetClient, generations: Sequence[Generation]) -> list[Running]:
    """Return once the fleet has accepted all. The first error cancels the others and is raised."""
    if len(generations) == 1:  # a task of its own would only delay the first token
        return [await Running.begin(fleet, generations[0])]
    tasks = [asyncio.ensure_future(Running.begin(fleet, generation)) for generation in generations]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        for begun in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(begun, Running):
                await begun.close()
        raise


async def complete_all(fleet: FleetClient, generations: Sequence[Generation]) -> list[Completion]:
    """Return all completions, in order. The first error cancels the other generations and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_found(fleet, generation, generation.send(fleet).collect()))
                for generation in generations
            ]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    completions = [task.result() for task in tasks]
    known = record.get()
    if known is not None:
        known.relayed(sum(completion.finished.usage.output_tokens for completion in completions))
    return completions


def user_of(name: object) -> str:
    """Return the caller's own user as the fleet's logs can name it.

    It is empty for a name that they cannot: a request is not refused for what only a log shows.
    """
    if isinstance(name, str) and name.isascii() and name.isprintable() and len(name) <= MAX_USER_CHARACTERS:
        return name
    return ""


def seed_of(seed: int | None, headers: Mapping[str, str]) -> int | None:
    """Return the seed. A request that may be sent again draws the same one each time."""
    if seed is None and (request_id := headers.get(ID_HEADER)):
        digest = hashlib.blake2b(request_id.encode(), digest_size=8).digest()
        return int.from_bytes(digest) >> 1
    return seed
