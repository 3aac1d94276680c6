"""Put prompts into the contract's messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from baton.types.chat import Chat, ChatMessage, NamedTool, Prompt, Tool, ToolChoice, ToolMode
from baton.v1 import inference_pb2
from baton.wire.fields import invalid, json_of, put

_MAX_DEPTH = 20
"""protobuf reads messages that are 100 deep, and each level of a mapping takes three."""
_MAX_WHOLE = 2**53


def put_prompt(
    request: inference_pb2.GenerateRequest | inference_pb2.CountTokensRequest, prompt: Prompt
) -> None:
    """Set the field of a request that holds its prompt. Raises `InvalidRequest`."""
    if isinstance(prompt, str):
        put(request, "", text=prompt)
        return
    if isinstance(prompt, Chat):
        _put_options(request.chat, prompt)
        _put_messages(request.chat, prompt.messages)
        return
    if prompt and all(isinstance(message, ChatMessage) for message in prompt):
        _put_messages(request.chat, prompt)
        return
    if isinstance(request, inference_pb2.CountTokensRequest):
        raise invalid("input", prompt, "text or chat messages")
    request.tokens.SetInParent()
    put(request.tokens, "tokens.", token_ids=prompt)


def _put_messages(chat: inference_pb2.ChatInput, given: Sequence[Any]) -> None:
    chat.SetInParent()
    for index, message in enumerate(given):
        if not isinstance(message, ChatMessage):
            raise invalid(f"chat.messages[{index}]", message, "a ChatMessage")
        where = f"chat.messages[{index}]."
        content: Any = message.content
        parts = content if isinstance(content, Sequence) and not isinstance(content, str) else None
        target = chat.messages.add()
        put(
            target,
            where,
            role=message.role,
            content=content if parts is None else None,
            tool_call_id=message.tool_call_id,
            name=message.name,
            reasoning=message.reasoning,
        )
        for place, text in enumerate(parts or ()):
            put(target.parts.add(), f"{where}parts[{place}].", text=text)
        for place, call in enumerate(message.tool_calls):
            put(
                target.tool_calls.add(),
                f"{where}tool_calls[{place}].",
                id=call.id,
                name=call.name,
                arguments=call.arguments,
            )


def _put_options(chat: inference_pb2.ChatInput, given: Chat) -> None:
    put(
        chat,
        "chat.",
        add_generation_prompt=given.add_generation_prompt,
        continue_final_message=given.continue_final_message,
        parallel_tool_calls=given.parallel_tool_calls,
    )
    for index, tool in enumerate(given.tools):
        _put_tool(chat.tools.add(), f"chat.tools[{index}].", tool)
    _put_tool_choice(chat.tool_choice, given.tool_choice)
    try:
        if _depth(given.template_arguments) > _MAX_DEPTH:
            raise ValueError(f"at most {_MAX_DEPTH} levels")
        if not all(map(_is_held, given.template_arguments.values())):
            raise ValueError(f"whole numbers of at most {_MAX_WHOLE}: the contract has no others")
        chat.template_arguments.update(given.template_arguments)
    except (TypeError, ValueError, OverflowError, AttributeError, RecursionError) as error:
        raise invalid("chat.template_arguments", given.template_arguments, str(error)) from None


def _depth(value: object) -> int:
    """Return how many mappings and lists are inside each other."""
    if isinstance(value, Mapping):
        return 1 + max(map(_depth, value.values()), default=0)
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list | tuple) else 0


def _is_held(value: object) -> bool:
    """Return whether the contract, whose numbers are binary64, holds all whole numbers in a value."""
    if isinstance(value, Mapping):
        return all(map(_is_held, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_held, value))
    return not isinstance(value, int) or abs(value) <= _MAX_WHOLE


def _put_tool(target: inference_pb2.Tool, where: str, tool: Tool) -> None:
    put(
        target,
        where,
        name=tool.name,
        description=tool.description,
        parameters=json_of(f"{where}parameters", tool.parameters),
        strict=tool.strict,
    )


def _put_tool_choice(target: inference_pb2.ToolChoice, given: ToolChoice | None) -> None:
    match given:
        case ToolMode():
            put(target, "chat.tool_choice.", mode=inference_pb2.ToolMode.Value(f"TOOL_MODE_{given.name}"))
        case NamedTool(name):
            put(target, "chat.tool_choice.", name=name)
        case None:
            pass
        case _:
            raise invalid("chat.tool_choice", given, "a ToolMode or a NamedTool")
