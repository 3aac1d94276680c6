"""The direct way of tokens: from the fleet's message to the caller's connection, in one call.

    a row of GenerateMany ──▶ SDK: the next tokens? ──▶ the API's text around them ──▶ the connection
            └── anything else, or a caller who reads slowly ──▶ an event of its stream, the ordinary way

No task wakes, and nothing is encoded but the text. The ordinary way remains for all that is rare.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import orjson

from baton.stream import GenerationStream
from baton.types.deltas import ContentDelta, Delta, TextDelta, ToolCallArguments
from gateway.serving.request_log import record

_MARK = uuid.uuid4().hex
_ENCODED_MARK = orjson.dumps(_MARK)


class Line(Protocol):
    """A caller's connection while a stream of events is written to it."""

    @property
    def is_free(self) -> bool:
        """Whether a part of the response can be written at once."""
        ...

    def write_now(self, event: bytes) -> None:
        """Write an event to a line that is free."""
        ...


class Frames:
    """The events of an API around the texts of a choice, encoded once for each kind of text.

    `write` returns the event for a delta, with its text as one or several whole JSON strings.
    """

    def __init__(self, write: Callable[[TextDelta], bytes]) -> None:
        self._write = write
        self._around: dict[tuple[type[TextDelta], int], list[bytes]] = {}

    def of(self, delta: TextDelta) -> bytes:
        """Return the event of a delta."""
        kind, index = type(delta), delta.index if isinstance(delta, ToolCallArguments) else 0
        around = self._around.get((kind, index))
        if around is None:
            event = self._write(replace(delta, text=_MARK))
            around = self._around[kind, index] = event.split(_ENCODED_MARK)
        return orjson.dumps(delta.text).join(around)


Say = Callable[[Sequence[TextDelta], int], bytes | None]
"""Returns the events for what so many tokens say, which counts as told. None: they have to be an event."""


def relay(stream: GenerationStream, line: Line, say: Say, *, has_deltas: bool) -> None:
    """Have a generation's tokens written to `line` directly, wherever that is possible.

    `say` encodes what they say; without `has_deltas` that is their text.
    """
    known = record.get()

    def take(text: str, deltas: Sequence[Delta], num_tokens: int) -> bool:
        if not line.is_free:
            return False
        if has_deltas:
            texts = [delta for delta in deltas if isinstance(delta, TextDelta)]
            if len(texts) < len(deltas):
                return False
        else:
            texts = [ContentDelta(text)] if text else []
        events = say(texts, num_tokens)
        if events is None:
            return False
        if events:
            line.write_now(events)
        if known is not None:
            known.relayed(num_tokens)
        return True

    stream.relay_to(take)
