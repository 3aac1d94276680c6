"""Prompts: chats with their messages and tools, texts and token ids."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that an assistant's message makes.

    `arguments` is a JSON object as text. Other text, as of a call that was cut off, is shown as it is.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a chat. The chat template defines the roles, such as system, user, assistant or tool.

    content       a text, or the texts of the content's parts
    tool_calls    the calls of an assistant's message
    tool_call_id  the call whose result a tool's message is
    name          who speaks, or the tool whose result this is
    reasoning     what an assistant thought before its message
    """

    role: str
    content: str | Sequence[str] = ""
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str = ""
    name: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may ask the caller to call.

    `parameters` is a JSON Schema of the arguments, a value or its text; without it they are any object. With
    `strict` all arguments validate against the schema, as those of forced calls always do.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | str = ""
    strict: bool = False


class ToolMode(enum.StrEnum):
    """Whether a choice calls tools: as the model likes, never, or at least one."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class NamedTool:
    """The one tool that a choice calls."""

    name: str


ToolChoice = ToolMode | NamedTool


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat with tools, and with variables and options for the model's chat template.

    template_arguments      variables of the template, such as enable_thinking; any JSON value
    add_generation_prompt   begin a new assistant message; by default unless the last message is continued
    continue_final_message  continue the last message
    tool_choice             which tools are called; by default as the model likes
    parallel_tool_calls     a choice may hold several calls; by default it may
    """

    messages: Sequence[ChatMessage]
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None


Prompt = str | Sequence[ChatMessage] | Chat | Sequence[int]
"""Text, the messages of a chat, a chat with arguments for its template, or token ids."""
