"""Chats: their messages, tools and calls, as OpenAI's clients send them."""

from __future__ import annotations

from collections.abc import Sequence

from baton import Chat, ChatMessage, NamedTool, Tool, ToolCall, ToolMode
from baton.chat import ToolChoice
from baton.wire.shown import shown
from gateway.bodies import text_of
from gateway.errors import invalid
from gateway.openai.schema import ChatBody, FunctionTool, Message, TokenizeBody

_REASONING_EFFORT = "reasoning_effort"

ADDED_BY_LITELLM = "provider_specific_fields"
"""LiteLLM adds it to answers, for its own callers, and sends it along when they are sent back."""


def chat_of(body: ChatBody | TokenizeBody) -> Chat:
    """Return the chat of a body that has messages; raises `ApiError`."""
    assert body.messages is not None
    arguments = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        arguments.setdefault(_REASONING_EFFORT, body.reasoning_effort)
    tools = _tools(body.tools or ())
    choice = _tool_choice(body, has_tools=bool(tools))
    if body.parallel_tool_calls is not None and not tools:
        raise invalid("parallel_tool_calls", "parallel_tool_calls is set; accepted: with tools")
    names = {call.id: call.function.name for message in body.messages for call in message.tool_calls or ()}
    return Chat(
        [_message(message, f"messages[{index}]", names) for index, message in enumerate(body.messages)],
        arguments,
        body.add_generation_prompt,
        body.continue_final_message,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls,
    )


def _tools(tools: Sequence[FunctionTool]) -> list[Tool]:
    return [
        Tool(
            tool.function.name,
            tool.function.description or "",
            tool.function.parameters or {},
            strict=bool(tool.function.strict),
        )
        for tool in tools
    ]


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
    raise invalid("tool_choice", f"tool_choice is {shown(body.tool_choice)}; accepted: {accepted}")


def _message(message: Message, where: str, names: dict[str, str]) -> ChatMessage:
    """Return a message; `names` has the tools of all calls by their ids."""
    for name, value in (message.model_extra or {}).items():
        if value not in (None, []) and name != ADDED_BY_LITELLM:
            accepted = "role, content, name, tool_calls, tool_call_id and reasoning_content"
            raise invalid(f"{where}.{name}", f"{where}.{name} is set; accepted: {accepted}")
    role = "system" if message.role == "developer" else message.role
    calls = message.tool_calls or ()
    if message.content is None and not calls:
        raise invalid(f"{where}.content", f"{where}.content is missing; accepted: a text, or parts of text")
    call_id = message.tool_call_id or ""
    return ChatMessage(
        role,
        text_of(message.content or "", f"{where}.content"),
        tool_calls=[ToolCall(call.id, call.function.name, call.function.arguments) for call in calls],
        tool_call_id=call_id,
        name=message.name or names.get(call_id, ""),
        reasoning=message.reasoning_content or message.reasoning or "",
    )
