"""Chats: their messages, tools and calls, as Anthropic's clients send them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from baton import Chat, ChatMessage, NamedTool, Tool, ToolCall, ToolMode
from baton.types.chat import ToolChoice
from baton.wire.fields import shown
from gateway.anthropic.schema import (
    Block,
    Content,
    MessageParam,
    PromptFields,
    TextBlock,
    ThinkingBlock,
    ToolParam,
    ToolResultBlock,
    ToolUseBlock,
)
from gateway.serving.bodies import leave_out, read_part
from gateway.serving.errors import invalid
from gateway.serving.slo import MAX_MESSAGES

_RESULT = "result"
_BLOCKS: dict[str, dict[str, type[Block]]] = {
    "system": {"text": TextBlock},
    _RESULT: {"text": TextBlock},
    "user": {"text": TextBlock, "tool_result": ToolResultBlock},
    "assistant": {"text": TextBlock, "thinking": ThinkingBlock, "tool_use": ToolUseBlock},
}
"""The blocks of each role, and of a tool's result, by type."""
_CONTENT = frozenset({"image", "document"})
"""Blocks that are refused, whoever sends them: without what they hold, a request would mean another thing."""


def _is_left_out(kind: object, role: str) -> bool:
    """Return whether a block is one of a tool that Anthropic runs itself, or sealed for its models alone."""
    if role == "assistant":
        return isinstance(kind, str) and kind not in _CONTENT
    return role == _RESULT and kind == "tool_reference"


def chat_of(body: PromptFields) -> Chat:
    """Return the chat. If the assistant speaks last, its message is continued. Raises `ApiError`."""
    spoken: list[ChatMessage] = []
    names: dict[str, str] = {}
    if body.system is not None:
        spoken.append(ChatMessage("system", _text(_blocks(body.system, "system", "system"))))
    for index, message in enumerate(body.messages):
        for said in _messages(message, f"messages[{index}].content", names):
            if len(spoken) >= MAX_MESSAGES:
                accepted = f"at most {MAX_MESSAGES}, results of tools among them"
                raise invalid("messages", f"messages has more messages; accepted: {accepted}")
            spoken.append(said)
            names.update((call.id, call.name) for call in said.tool_calls)
    if not spoken:
        raise invalid("messages", "messages has no block that is served; accepted: a text, or text blocks")
    tools = [*_tools(body.tools or ())]
    choice = body.tool_choice
    return Chat(
        spoken,
        _template_arguments(body),
        continue_final_message=body.messages[-1].role == spoken[-1].role == "assistant",
        tools=tools,
        tool_choice=_tool_choice(body, has_tools=bool(tools)),
        parallel_tool_calls=None if choice is None or not tools else not choice.disable_parallel_tool_use,
    )


def _tools(tools: Sequence[Mapping[str, Any]]) -> Iterator[Tool]:
    """Yield the tools that the caller runs. Raises `ApiError`."""
    for index, given in enumerate(tools):
        kind = given.get("type")
        if isinstance(kind, str) and kind != "custom":
            where = f"tools[{index}]"
            leave_out(where, f"{where}.type is {shown(kind)}; accepted: 'custom', or unset")
            continue
        tool = read_part(ToolParam, given, "tools", index)
        yield Tool(tool.name, tool.description or "", tool.input_schema, strict=bool(tool.strict))


def _template_arguments(body: PromptFields) -> dict[str, bool | str]:
    """Return the variables by which templates turn thinking on and off, and the one for its effort."""
    arguments: dict[str, bool | str] = {}
    if body.thinking is not None:
        is_on = body.thinking.type != "disabled"
        arguments |= {"enable_thinking": is_on, "thinking": is_on}
    if body.output_config is not None and body.output_config.effort is not None:
        arguments["reasoning_effort"] = body.output_config.effort
    return arguments


def _tool_choice(body: PromptFields, *, has_tools: bool) -> ToolChoice | None:
    choice = body.tool_choice
    if choice is None or (not has_tools and choice.type in {"auto", "none"}):
        return None
    if not has_tools:
        accepted = "'auto' or 'none', as tools has none that the caller runs"
        raise invalid("tool_choice", f"tool_choice.type is {shown(choice.type)}; accepted: {accepted}")
    if choice.type == "tool":
        if choice.name is None:
            raise invalid("tool_choice.name", "tool_choice.name is missing; accepted: the name of a tool")
        return NamedTool(choice.name)
    return {"auto": ToolMode.AUTO, "any": ToolMode.REQUIRED, "none": ToolMode.NONE}[choice.type]


def _messages(message: MessageParam, where: str, names: Mapping[str, str]) -> Iterator[ChatMessage]:
    """Yield a message's results of calls, then the rest; `names` has the tool of each call."""
    blocks = _blocks(message.content, message.role, where)
    for index, block in enumerate(blocks):
        if isinstance(block, ToolResultBlock):
            texts = _blocks(block.content, _RESULT, f"{where}[{index}].content")
            yield ChatMessage(
                "tool", _text(texts), tool_call_id=block.tool_use_id, name=names.get(block.tool_use_id, "")
            )
    # Nothing else is left to say, or nothing that is served.
    if message.content and all(isinstance(block, ToolResultBlock) for block in blocks):
        return
    yield ChatMessage(
        message.role,
        _text(blocks),
        tool_calls=[
            ToolCall(block.id, block.name, _arguments(block))
            for block in blocks
            if isinstance(block, ToolUseBlock)
        ],
        reasoning="\n".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock)),
    )


def _arguments(call: ToolUseBlock) -> str:
    return call.input if isinstance(call.input, str) else json.dumps(call.input or {})


def _blocks(content: Content, role: str, where: str) -> list[Block]:
    """Return the blocks of a content whose path is `where`. Raises `ApiError` for other kinds."""
    if isinstance(content, str):
        return [TextBlock(type="text", text=content)]
    blocks = []
    for index, given in enumerate(content):
        place, named = f"{where}[{index}]", given.get("type")
        kind = _BLOCKS[role].get(named) if isinstance(named, str) else None
        if kind is not None:
            blocks.append(read_part(kind, given, where, index))
            continue
        accepted = ", ".join(map(shown, _BLOCKS[role]))
        message = f"{place}.type is {shown(named)}; accepted: {accepted}"
        if not _is_left_out(named, role):
            raise invalid(f"{place}.type", message)
        leave_out(place, message)
    return blocks


def _text(blocks: Sequence[Block]) -> str:
    return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))
