"""Conversion of Anthropic's requests and chats to the SDK's types, and of the contract's field names back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from baton import Chat, ChatMessage, NamedTool, Tool, ToolCall, ToolMode
from baton.types import JsonSchema, Sampling, Stop
from baton.types.chat import ToolChoice
from baton.wire.fields import shown
from gateway.anthropic.schema import (
    Block,
    Content,
    MessageParam,
    MessagesBody,
    PromptFields,
    TextBlock,
    ThinkingBlock,
    ToolParam,
    ToolResultBlock,
    ToolUseBlock,
)
from gateway.serving.bodies import leave_out, read_part, read_tools
from gateway.serving.errors import invalid, renamed
from gateway.serving.generations import ID_HEADER, Generation, seed_of, user_of
from gateway.serving.slo import MAX_MESSAGES, program_of, slo_of

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
_RENAMED = {
    "adapter": "model",
    "stop.stop_strings": "stop_sequences",
    "stop.max_tokens": "max_tokens",
    "chat.parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "chat.tools[].parameters": "tools[].input_schema",
    "output_format.json_schema": "output_config.format.schema",
    "output_format": "output_config.format",
    "request_id": "Idempotency-Key",
}


def param_of(field: str) -> str:
    """Return the name in the HTTP body of a field of the contract."""
    # A message's results of tools are messages of their own, so its number says nothing.
    return "messages" if field == "chat" or field.startswith("chat.messages") else renamed(field, _RENAMED)


def generation_of(body: MessagesBody, chat: Chat, headers: Mapping[str, str]) -> Generation:
    """Return the generation that a body asks for, whose chat is `chat`; raises `ApiError`."""
    form = None if body.output_config is None else body.output_config.format
    if body.output_format is not None:
        if form is not None:
            accepted = "unset, beside output_config.format"
            raise invalid("output_format", f"output_format is set; accepted: {accepted}")
        form = body.output_format
    return Generation(
        chat,
        Sampling(
            temperature=body.temperature, top_k=body.top_k, top_p=body.top_p, seed=seed_of(None, headers)
        ),
        Stop(max_tokens=body.max_tokens, strings=tuple(body.stop_sequences or ())),
        slo_of(body.slo, headers),
        headers.get(ID_HEADER, ""),
        output_format=None if form is None else JsonSchema(form.schema_),
        cancel_when_closed=not headers.get(ID_HEADER),
        user=user_of((body.metadata or {}).get("user_id")),
        program=program_of(body.program, headers),
    )


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
    tools = [
        Tool(tool.name, tool.description or "", tool.input_schema, strict=bool(tool.strict))
        for tool in read_tools(ToolParam, body.tools, "custom", "'custom', or unset")
    ]
    choice = body.tool_choice
    return Chat(
        spoken,
        _template_arguments(body),
        continue_final_message=body.messages[-1].role == spoken[-1].role == "assistant",
        tools=tools,
        tool_choice=_tool_choice(body, has_tools=bool(tools)),
        parallel_tool_calls=None if choice is None or not tools else not choice.disable_parallel_tool_use,
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
            ToolCall(
                block.id,
                block.name,
                block.input if isinstance(block.input, str) else json.dumps(block.input or {}),
            )
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
