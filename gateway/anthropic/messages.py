"""Chats: their messages, tools and calls, as Anthropic's clients send them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from pydantic import ValidationError

from baton import Chat, ChatMessage, NamedTool, Tool, ToolCall, ToolMode
from baton.chat import ToolChoice
from baton.wire.shown import shown
from gateway.anthropic.schema import (
    Block,
    Content,
    MessageParam,
    PromptFields,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from gateway.bodies import explained
from gateway.errors import invalid

_BLOCKS: dict[str, dict[str, type[Block]]] = {
    "system": {"text": TextBlock},
    "user": {"text": TextBlock, "tool_result": ToolResultBlock},
    "assistant": {"text": TextBlock, "thinking": ThinkingBlock, "tool_use": ToolUseBlock},
}
"""The blocks of each role, by type."""


def chat_of(body: PromptFields) -> Chat:
    """Return the chat. If the assistant speaks last, its message is continued. Raises `ApiError`."""
    spoken: list[ChatMessage] = []
    names: dict[str, str] = {}
    if body.system is not None:
        spoken.append(ChatMessage("system", _text(_blocks(body.system, "system", "system"))))
    for index, message in enumerate(body.messages):
        spoken.extend(_messages(message, f"messages[{index}].content", names))
        names.update((call.id, call.name) for call in spoken[-1].tool_calls)
    choice = body.tool_choice
    if choice is not None and not body.tools:
        raise invalid("tool_choice", "tool_choice is set; accepted: with tools")
    return Chat(
        spoken,
        _template_arguments(body),
        continue_final_message=body.messages[-1].role == "assistant",
        tools=[
            Tool(tool.name, tool.description or "", tool.input_schema, strict=bool(tool.strict))
            for tool in body.tools or ()
        ],
        tool_choice=_tool_choice(body),
        parallel_tool_calls=None if choice is None else not choice.disable_parallel_tool_use,
    )


def _template_arguments(body: PromptFields) -> dict[str, bool | str]:
    """Return the variables by which templates turn thinking on and off, and the one for its effort."""
    arguments: dict[str, bool | str] = {}
    if body.thinking is not None:
        is_on = body.thinking.type != "disabled"
        arguments |= {"enable_thinking": is_on, "thinking": is_on}
    if body.output_config is not None and body.output_config.effort is not None:
        arguments["reasoning_effort"] = body.output_config.effort
    return arguments


def _tool_choice(body: PromptFields) -> ToolChoice | None:
    choice = body.tool_choice
    if choice is None:
        return None
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
            texts = _blocks(block.content, "system", f"{where}[{index}].content")
            yield ChatMessage(
                "tool", _text(texts), tool_call_id=block.tool_use_id, name=names.get(block.tool_use_id, "")
            )
    if blocks and all(isinstance(block, ToolResultBlock) for block in blocks):
        return
    yield ChatMessage(
        message.role,
        _text(blocks),
        tool_calls=[
            ToolCall(block.id, block.name, json.dumps(block.input))
            for block in blocks
            if isinstance(block, ToolUseBlock)
        ],
        reasoning="\n".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock)),
    )


def _blocks(content: Content, role: str, where: str) -> list[Block]:
    """Return the blocks of a content whose path is `where`. Raises `ApiError` for other kinds."""
    if isinstance(content, str):
        return [TextBlock(type="text", text=content)]
    blocks = []
    for index, given in enumerate(content):
        kind = _BLOCKS[role].get(str(given.get("type")))
        if kind is None:
            name, accepted = f"{where}[{index}].type", ", ".join(map(shown, _BLOCKS[role]))
            raise invalid(name, f"{name} is {shown(given.get('type'))}; accepted: {accepted}")
        try:
            blocks.append(kind.model_validate(given))
        except ValidationError as error:
            raise explained(error, where, index) from None
    return blocks


def _text(blocks: Sequence[Block]) -> str:
    return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))
