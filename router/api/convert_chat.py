"""Convert chats of the public contract."""

from __future__ import annotations

from typing import Any

from google.protobuf import struct_pb2

from baton.v1 import inference_pb2
from router.errors import SET, ValidationError
from router.request import ChatOptions, Conversation, Message, Tool, ToolCall
from runtime.rpc.convert import field_of, from_pb


def chat_from_pb(chat: inference_pb2.ChatInput) -> Conversation:
    """Return a chat as received. Raises `ValidationError` for parts that are no text."""
    choice = chat.tool_choice
    return Conversation(
        tuple(
            _message_from_pb(message, f"chat.messages[{place}]")
            for place, message in enumerate(chat.messages)
        ),
        _options_from_pb(chat),
        tuple(from_pb(Tool, tool) for tool in chat.tools),
        choice.mode,
        field_of(choice, "name"),
        field_of(chat, "parallel_tool_calls"),
    )


def _message_from_pb(message: inference_pb2.ChatMessage, where: str) -> Message:
    """Return a message with its parts joined, a line each."""
    if message.parts and message.content:
        raise ValidationError(f"{where}.parts", SET, f"unset, beside {where}.content")
    for place, part in enumerate(message.parts):
        if part.type not in {"", "text"}:
            raise ValidationError(
                f"{where}.parts[{place}].type", part.type, "text: this model reads nothing else"
            )
    return from_pb(
        Message,
        message,
        content="\n".join(part.text for part in message.parts) if message.parts else message.content,
        tool_calls=tuple(from_pb(ToolCall, call) for call in message.tool_calls),
    )


def _options_from_pb(chat: inference_pb2.ChatInput) -> ChatOptions:
    """Return the options of a chat. By default a continued message gets no generation prompt."""
    continues = chat.continue_final_message
    adds = chat.add_generation_prompt if chat.HasField("add_generation_prompt") else not continues
    arguments = {name: _value_from_pb(value) for name, value in chat.template_arguments.fields.items()}
    return ChatOptions(arguments, adds, continues)


def _value_from_pb(value: struct_pb2.Value) -> Any:
    """Convert as JSON does: a number without a fraction becomes an integer."""
    match value.WhichOneof("kind"):
        case "number_value":
            number = value.number_value
            return int(number) if number.is_integer() else number
        case "struct_value":
            return {name: _value_from_pb(inner) for name, inner in value.struct_value.fields.items()}
        case "list_value":
            return [_value_from_pb(inner) for inner in value.list_value.values]
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case _:
            return None
