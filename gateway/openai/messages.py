"""Chats: their messages, tools and calls, as OpenAI's clients send them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from baton import Chat, ChatMessage, NamedTool, Tool, ToolCall, ToolMode
from baton.types.chat import ToolChoice
from baton.wire.shown import shown
from gateway.openai.schema import ChatBody, FunctionTool, Message, TokenizeBody
from gateway.serving.bodies import TEXTS, leave_out, read_part, text_of
from gateway.serving.errors import invalid

_REASONING_EFFORT = "reasoning_effort"
_FUNCTION = "function"
_TEXTS = {"text": "text", "refusal": "refusal"}
"""The parts of an assistant's message, and where their texts are."""


def chat_of(body: ChatBody | TokenizeBody) -> Chat:
    """Return the chat of a body that has messages; raises `ApiError`."""
    assert body.messages is not None
    arguments = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        arguments.setdefault(_REASONING_EFFORT, body.reasoning_effort)
    tools = [*_tools(body.tools or ())]
    choice = _tool_choice(body, has_tools=bool(tools))
    if body.parallel_tool_calls is not None and not body.tools:
        leave_out("parallel_tool_calls", "parallel_tool_calls is set; accepted: with tools")
    return Chat(
        [*_messages(body.messages)],
        arguments,
        body.add_generation_prompt,
        body.continue_final_message,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls if tools else None,
    )


def _tools(tools: Sequence[Mapping[str, Any]]) -> Iterator[Tool]:
    """Yield the functions among the tools of a body. Raises `ApiError`."""
    for index, given in enumerate(tools):
        kind = given.get("type", _FUNCTION)
        if kind != _FUNCTION and isinstance(kind, str):
            where = f"tools[{index}]"
            leave_out(where, f"{where}.type is {shown(kind)}; accepted: {_FUNCTION!r}")
            continue
        function = read_part(FunctionTool, given, "tools", index).function
        yield Tool(
            function.name,
            function.description or "",
            function.parameters or {},
            strict=bool(function.strict),
        )


def _tool_choice(body: ChatBody | TokenizeBody, *, has_tools: bool) -> ToolChoice | None:
    match body.tool_choice:
        case None:
            return None
        case "none" | "auto" if not has_tools:
            return None
        case "none" | "auto" | "required" as mode if has_tools:
            return ToolMode(mode)
        case {"type": "function", "function": {"name": str(name)}} if has_tools:
            return NamedTool(name)
    named = '{"type": "function", "function": {"name": ...}}'
    accepted = f"'none', 'auto', 'required', or {named} of one of the tools"
    if not has_tools:
        accepted = "'none' or 'auto', as tools has no function"
    raise invalid("tool_choice", f"tool_choice is {shown(body.tool_choice)}; accepted: {accepted}")


def _messages(given: Sequence[Message]) -> Iterator[ChatMessage]:
    """Yield the messages, without calls of other tools than functions, and without their results."""
    names: dict[str, str] = {}
    left: set[str] = set()
    for index, message in enumerate(given):
        where = f"messages[{index}]"
        if message.tool_call_id in left:
            leave_out(where, f"{where} is the result of a call of no function; accepted: one of a function")
            continue
        calls = []
        for place, call in enumerate(message.tool_calls or ()):
            if call.type == _FUNCTION and call.function is not None:
                names[call.id] = call.function.name
                calls.append(ToolCall(call.id, call.function.name, call.function.arguments))
                continue
            name = f"{where}.tool_calls[{place}]"
            if call.type == _FUNCTION:
                raise invalid(f"{name}.function", f"{name}.function is missing")
            leave_out(name, f"{name}.type is {shown(call.type)}; accepted: {_FUNCTION!r}")
            left.add(call.id)
        if calls or not message.tool_calls or message.content or message.reasoning_content:
            yield _message(message, where, calls, names)


def _message(
    message: Message, where: str, calls: Sequence[ToolCall], names: Mapping[str, str]
) -> ChatMessage:
    """Return a message; `names` has the tools of all calls before it by their ids."""
    is_assistants = message.role == "assistant"
    content = message.content or message.refusal
    if message.content is None and not calls and not is_assistants:
        raise invalid(f"{where}.content", f"{where}.content is missing; accepted: a text, or parts of text")
    call_id = message.tool_call_id or ""
    return ChatMessage(
        "system" if message.role == "developer" else message.role,
        text_of(content or "", f"{where}.content", _TEXTS if is_assistants else TEXTS),
        tool_calls=calls,
        tool_call_id=call_id,
        name=message.name or names.get(call_id, ""),
        reasoning=message.reasoning_content or message.reasoning or "",
    )
