"""Outputs in the words of each family, as its chat template writes them, and what a parser says of a text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from model_output.formats import (
    ChatFormats,
    ContentDelta,
    Delta,
    OutputParser,
    ReasoningDelta,
    Tool,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
)
from tests.vectors.outputs.reading import tools

Call = tuple[str, dict[str, Any]]

TOOLS = [Tool(**tool) for tool in tools()]
"""The types of `get_weather`'s parameters matter where a notation has no quotes."""


@dataclass
class Said:
    """The sum of an output's deltas."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    """The indexes of the calls that are complete."""
    has_cut_call: bool = False


def said(deltas: Iterable[Delta]) -> Said:
    found = Said()
    for delta in deltas:
        match delta:
            case ContentDelta(text):
                found.content += text
            case ReasoningDelta(text):
                found.reasoning += text
            case ToolCallBegun(index, name, id):
                assert index == len(found.calls)
                found.calls.append((name, ""))
                found.ids.append(id)
            case ToolCallArguments(index, text):
                assert index == len(found.calls) - 1, "arguments of a call that is over"
                assert text
                name, before = found.calls[index]
                found.calls[index] = (name, before + text)
            case ToolCallEnded(index):
                assert index == len(found.calls) - 1, "the end of a call that is over"
                found.ended.append(index)
    return found


def parsed(
    formats: ChatFormats,
    pieces: Sequence[str],
    tools: Sequence[Tool] = TOOLS,
    *,
    reasoning_open: bool = False,
    has_format: bool = False,
    cut_before: str | None = None,
) -> Said:
    parser = OutputParser(formats, tools, seed="s", reasoning_open=reasoning_open, has_format=has_format)
    deltas = [delta for piece in pieces for delta in parser.feed(piece)]
    found = said([*deltas, *parser.finish(cut_before)])
    found.has_cut_call = parser.has_cut_call
    assert found.has_cut_call is (found.ended != list(range(len(found.calls))))
    return found


def written(tools: str, calls: Sequence[Call]) -> str:
    """The calls in a format, at least one."""
    one_by_one: dict[str, tuple[str, Callable[..., str]]] = {
        "hermes": ("\n", lambda *call: f"<tool_call>\n{_object(*call)}\n</tool_call>"),
        "qwen3_coder": ("\n", _function),
        "llama3_json": ("; ", lambda name, given: _object(name, given, "parameters")),
        "mistral_args": ("", lambda name, given: f"[TOOL_CALLS]{name}[ARGS]{json.dumps(given)}"),
        "harmony": ("", _message),
    }
    if tools in one_by_one:
        separator, write = one_by_one[tools]
        return separator.join(write(*call) for call in calls)
    begin, end = {
        "pythonic": ("", ""),
        "mistral": ("[TOOL_CALLS] ", ""),
        "granite": ("<|tool_call|>", ""),
        "phi4": ("<|tool_call|>", "<|/tool_call|>"),
    }[tools]
    write = _python if tools == "pythonic" else _object
    return f"{begin}[{', '.join(write(*call) for call in calls)}]{end}"


def format_name(tools: str) -> str:
    """The name of a format; Mistral's has two notations."""
    return tools.removesuffix("_args")


NOTATIONS = (
    "granite",
    "hermes",
    "llama3_json",
    "mistral",
    "mistral_args",
    "phi4",
    "pythonic",
    "qwen3_coder",
    "harmony",
)


def _object(name: str, given: dict[str, Any], key: str = "arguments") -> str:
    return json.dumps({"name": name, key: given}, ensure_ascii=False)


def _message(name: str, given: dict[str, Any]) -> str:
    to = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
    return f"{to}{json.dumps(given, ensure_ascii=False)}<|call|>"


def _python(name: str, given: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})"


def _function(name: str, given: dict[str, Any]) -> str:
    def text(value: object) -> str:
        return value if isinstance(value, str) else json.dumps(value)

    parameters = "".join(f"<parameter={key}>\n{text(value)}\n</parameter>\n" for key, value in given.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"
