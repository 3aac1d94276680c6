"""The deltas of a choice: content, reasoning and tool calls, as routers read them in its text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from baton.types.chat import ChatMessage, ToolCall


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the message."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what the model thinks before its message."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallBegun:
    """A call of one of the tools; `index` counts the calls of the choice."""

    index: int
    name: str
    id: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of a call's arguments. All of a call together are a JSON object, unless it was cut off."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnded:
    """A call is complete. One without this was cut off, or broke off, and must not be run."""

    index: int


TextDelta = ContentDelta | ReasoningDelta | ToolCallArguments
"""A delta that only adds text to what was begun."""
Delta = ContentDelta | ReasoningDelta | ToolCallBegun | ToolCallArguments | ToolCallEnded


def said_by_assistant(deltas: Iterable[Delta]) -> ChatMessage:
    """Return what all deltas of a choice add up to, as the assistant's message of the next request."""
    content, reasoning = list[str](), list[str]()
    begun, arguments = list[ToolCallBegun](), list[list[str]]()
    for delta in deltas:
        match delta:
            case ContentDelta(text):
                content.append(text)
            case ReasoningDelta(text):
                reasoning.append(text)
            case ToolCallBegun():
                begun.append(delta)
                arguments.append([])
            case ToolCallArguments(index, text):
                arguments[index].append(text)
            case ToolCallEnded():
                pass
    calls = (
        ToolCall(call.id, call.name, "".join(texts)) for call, texts in zip(begun, arguments, strict=True)
    )
    return ChatMessage("assistant", "".join(content), tuple(calls), reasoning="".join(reasoning))


class CutCalls:
    """Finds calls that were cut off, or broke off, in the deltas of a choice."""

    def __init__(self, deltas: Iterable[Delta] = ()) -> None:
        self._open: set[int] = set()
        for delta in deltas:
            self.add(delta)

    def add(self, delta: Delta) -> None:
        """Take in the next delta."""
        match delta:
            case ToolCallBegun(index):
                self._open.add(index)
            case ToolCallEnded(index):
                self._open.discard(index)

    def __bool__(self) -> bool:
        """Return True if some call has no end."""
        return bool(self._open)
