"""Take the texts of choices apart: content, reasoning and tool calls, as the model writes them."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import chat_formats
from baton.chat import ChatMessage, Tool, ToolCall
from baton.errors import Internal
from baton.types import (
    Accepted,
    Choice,
    ChoiceFinished,
    Completion,
    Event,
    Finished,
    FinishReason,
    PromptLogprobs,
    Queued,
    Tokens,
)
from chat_formats import REASONING_FORMATS, TOOL_FORMATS, ChatFormats, Delta, Message, OutputParser


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """More content, reasoning or tool calls of one choice."""

    choice: int
    delta: Delta


ParsedEvent = Accepted | Queued | PromptLogprobs | ChoiceDelta | ChoiceFinished | Finished
"""An event of a stream, with deltas in place of tokens."""


def parser_of(
    tools: Sequence[Tool], accepted: Accepted | Completion, choice: int, *, has_format: bool = False
) -> OutputParser:
    """Return a parser for the text of one choice, from its beginning.

    `has_format`: the request had an output format, so the content is calls or one text in the format. Raises
    `Internal` for a format of calls or reasoning that this client does not know.
    """
    if tools:
        _check(accepted.tool_format, TOOL_FORMATS, "tool calls")
    _check(accepted.reasoning_format, REASONING_FORMATS, "reasoning")
    return OutputParser(
        ChatFormats(accepted.tool_format, accepted.reasoning_format),
        [_tool(tool) for tool in tools],
        seed=f"{accepted.request_id}/{choice}",
        reasoning_open=accepted.reasoning_open,
        has_format=has_format,
    )


def cut_before(reason: FinishReason, end: Choice | ChoiceFinished) -> str | None:
    """Return the stop string before which an output was cut off, or nothing where none is known.

    None if the model ended it, which a stop token counts as.
    """
    if reason is FinishReason.EOS or end.stop_token_id is not None:
        return None
    return end.stop_string or ""


def _check(name: str, known: Collection[str], what: str) -> None:
    if name and name not in known:
        names = ", ".join(known)
        raise Internal(
            f"the router named a format of {what} this client does not know: {name}; known: {names}"
        )


def message_of(
    completion: Completion, tools: Sequence[Tool] = (), choice: int = 0, *, has_format: bool = False
) -> ChatMessage:
    """Return a choice as the assistant's message of the next request.

    `tools` are those of this one, and `has_format` says whether it had an output format.
    """
    parser = parser_of(tools, completion, choice, has_format=has_format)
    found = completion.choices[choice]
    return said_by_assistant(parser.read(found.text, cut_before(found.finish_reason, found)))


def said_by_assistant(message: Message) -> ChatMessage:
    """Return a whole output as the assistant's message."""
    calls = [ToolCall(call.id, call.name, call.arguments) for call in message.calls]
    return ChatMessage("assistant", message.content, tuple(calls), reasoning=message.reasoning)


class EventParser:
    """Replaces the tokens of a stream's events by what they say."""

    def __init__(self, tools: Sequence[Tool], *, has_format: bool = False) -> None:
        self._tools = tools
        self._has_format = has_format
        self._accepted: Accepted | None = None
        self._parsers: dict[int, OutputParser] = {}

    def feed(self, event: Event) -> list[ParsedEvent]:
        """Return what one event says."""
        match event:
            case Tokens(choice=choice):
                return [ChoiceDelta(choice, delta) for delta in self._parser(choice).feed(event.text)]
            case ChoiceFinished(choice=choice):
                rest = self._parser(choice).finish(cut_before(event.reason, event))
                return [*(ChoiceDelta(choice, delta) for delta in rest), event]
            case Accepted():
                self._accepted = event
        return [event]

    def _parser(self, choice: int) -> OutputParser:
        if choice not in self._parsers:
            assert self._accepted is not None, "a stream begins with Accepted"
            self._parsers[choice] = parser_of(
                self._tools, self._accepted, choice, has_format=self._has_format
            )
        return self._parsers[choice]


def _tool(tool: Tool) -> chat_formats.Tool:
    given = tool.parameters
    parameters = json.loads(given or "{}") if isinstance(given, str) else given
    return chat_formats.Tool(tool.name, tool.description, parameters, tool.strict)
