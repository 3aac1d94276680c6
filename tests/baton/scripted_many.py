"""The GenerateMany of a scripted router: a script for each generation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from baton.v1 import inference_pb2

Play = Callable[[inference_pb2.GenerateRequest, "OwnContext"], AsyncIterator[inference_pb2.GenerationEvent]]


class ManyScripts:
    """One call. It ends if a script does without `Finished`, since a generation alone cannot end so."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self._playing: dict[int, asyncio.Task[None]] = {}
        self._said: asyncio.Queue[inference_pb2.GenerateManyEvent | CallAborted | None] = asyncio.Queue()

    async def responses(self, requests: Any) -> AsyncIterator[inference_pb2.GenerateManyResponse]:
        reading = asyncio.create_task(self._read(requests))
        try:
            while (event := await self._said.get()) is not None:
                if isinstance(event, CallAborted):
                    raise event
                yield _message(event)
        finally:
            tasks = (reading, *self._playing.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, requests: Any) -> None:
        async for command in requests:
            if command.WhichOneof("command") == "leave":
                self._playing[command.id].cancel()
            else:
                self._playing[command.id] = asyncio.create_task(self._run(command))
        await asyncio.gather(*self._playing.values(), return_exceptions=True)
        self._said.put_nowait(None)

    async def _run(self, command: inference_pb2.GenerateManyRequest) -> None:
        has_finished = False
        try:
            async for event in self._play(command.generate, OwnContext()):
                has_finished = event.HasField("finished")
                self._said.put_nowait(inference_pb2.GenerateManyEvent(id=command.id, generation=event))
        except _Aborted as aborted:
            (status,) = aborted.args
            self._said.put_nowait(inference_pb2.GenerateManyEvent(id=command.id, status=status))
        except CallAborted as aborted:
            self._said.put_nowait(aborted)
        else:
            if not has_finished:
                self._said.put_nowait(None)


def _message(event: inference_pb2.GenerateManyEvent) -> inference_pb2.GenerateManyResponse:
    """Return the message with an event. As from a router, tokens without log-probabilities are a row."""
    tokens = event.generation.tokens
    if not event.generation.HasField("tokens") or tokens.logprobs:
        return inference_pb2.GenerateManyResponse(events=[event])
    text = tokens.text.encode()
    rows = inference_pb2.TokenRows(
        ids=[event.id],
        choices=[tokens.choice],
        first_indexes=[tokens.first_index],
        num_tokens=[len(tokens.token_ids)],
        token_ids=tokens.token_ids,
        text_lengths=[len(text)],
        text_utf8=text,
        num_deltas=[len(tokens.deltas)] if tokens.deltas else [],
        deltas=tokens.deltas,
    )
    return inference_pb2.GenerateManyResponse(tokens=rows)


class CallAborted(Exception):
    """Ends a call and all generations on it."""

    def __init__(self, code: grpc.StatusCode) -> None:
        super().__init__(code.name)
        self.code = code


class _Aborted(Exception):
    """Ends a generation with a serialised status."""


class OwnContext:
    """The part of a call's context that scripts use, for one generation."""

    async def abort(self, _code: object, _message: str, trailing_metadata: Any) -> None:
        ((_, status),) = trailing_metadata
        raise _Aborted(status)
