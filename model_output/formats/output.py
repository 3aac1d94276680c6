"""The deltas of an output: content, reasoning and calls, without the white space between them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

from model_output.formats.types import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    Tool,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
)


def call_id(seed: str, index: int, *, is_short: bool) -> str:
    """Return the id of a call, the same one each time. Mistral's templates take nine letters and digits."""
    digest = hashlib.sha256(f"{seed}/{index}".encode(errors="replace")).hexdigest()
    return digest[:9] if is_short else f"call_{digest[:24]}"


_Kind = Literal["content", "reasoning", "arguments"]


class Output:
    """Gathers deltas. White space at the edges of reasoning and next to calls belongs to the format."""

    def __init__(self, tools: Sequence[Tool], seed: str, *, has_short_ids: bool) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._seed = seed
        self._has_short_ids = has_short_ids
        self._deltas: list[Delta] = []
        self._pieces: list[str] = []
        self._kind: _Kind = "content"
        self._space: list[str] = []
        self._is_fresh = False
        self.num_calls = 0
        self._is_call_open = False
        self._has_broken_call = False

    def knows(self, name: str | None) -> bool:
        return name in self._tools

    def tool(self, name: str) -> Tool:
        return self._tools[name]

    def content(self, text: str) -> None:
        self._text("content", text)

    def reasoning(self, text: str) -> None:
        self._text("reasoning", text)

    def pause(self) -> None:
        """Leave out the white space before and after this place."""
        self._space.clear()
        self._is_fresh = True

    @property
    def has_cut_call(self) -> bool:
        """Whether the arguments of a call broke off."""
        return self._has_broken_call or self._is_call_open

    def begin(self, name: str) -> None:
        """Begin a call, to which the arguments that follow belong, until `complete`."""
        self._flush()
        self.pause()
        id_ = call_id(self._seed, self.num_calls, is_short=self._has_short_ids)
        self._deltas.append(ToolCallBegun(self.num_calls, name, id_))
        self.num_calls += 1
        self._has_broken_call |= self._is_call_open
        self._is_call_open = True

    def complete(self) -> None:
        """Say that the call has all its arguments."""
        self._flush()
        self._deltas.append(ToolCallEnded(self.num_calls - 1))
        self._is_call_open = False

    def arguments(self, text: str) -> None:
        self._add("arguments", text)

    def take(self) -> list[Delta]:
        """Return the deltas since the last time."""
        self._flush()
        deltas, self._deltas = self._deltas, []
        return deltas

    def end(self) -> None:
        """Keep the white space that was held back."""
        if self._space:
            self._pieces.extend(self._space)
            self._space.clear()

    def _text(self, kind: _Kind, text: str) -> None:
        if self._is_fresh:
            text = text.lstrip()
        body = text.rstrip()
        if body:
            self._is_fresh = False
            self._add(kind, "".join([*self._space, body]))
            self._space.clear()
        if len(body) < len(text):
            self._space.append(text[len(body) :])

    def _add(self, kind: _Kind, text: str) -> None:
        if kind != self._kind:
            self._flush()
            self._kind = kind
        self._pieces.append(text)

    def _flush(self) -> None:
        text = "".join(self._pieces)
        self._pieces.clear()
        if not text:
            return
        match self._kind:
            case "content":
                self._deltas.append(ContentDelta(text))
            case "reasoning":
                self._deltas.append(ReasoningDelta(text))
            case "arguments":
                self._deltas.append(ToolCallArguments(self.num_calls - 1, text))
