"""The types of this package: tools to call, the names of formats, and the parts of an output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is the JSON schema of its arguments."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False


@dataclass(frozen=True, slots=True)
class ChatFormats:
    """How a model writes tool calls and reasoning, by name; empty: not at all."""

    tools: str = ""
    reasoning: str = ""


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
    """A call of one of the tools; `index` counts the calls of the output."""

    index: int
    name: str
    id: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of a call's arguments. All of a call together are a JSON object, unless the output is cut off."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnded:
    """A call has all its arguments. One without this was cut off, or broke off."""

    index: int


@dataclass(frozen=True, slots=True)
class Call:
    """A whole call; `arguments` is a JSON object unless the output was cut off."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """A whole output."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()

    @classmethod
    def of(cls, deltas: Iterable[Delta]) -> Message:
        """Return what all deltas of an output add up to."""
        content, reasoning = list[str](), list[str]()
        openings, arguments = list[ToolCallBegun](), list[list[str]]()
        for delta in deltas:
            match delta:
                case ContentDelta(text):
                    content.append(text)
                case ReasoningDelta(text):
                    reasoning.append(text)
                case ToolCallBegun():
                    openings.append(delta)
                    arguments.append([])
                case ToolCallArguments(index, text):
                    arguments[index].append(text)
                case ToolCallEnded():
                    pass
        calls = (
            Call(call.id, call.name, "".join(texts)) for call, texts in zip(openings, arguments, strict=True)
        )
        return cls("".join(content), "".join(reasoning), tuple(calls))


Delta = ContentDelta | ReasoningDelta | ToolCallBegun | ToolCallArguments | ToolCallEnded
