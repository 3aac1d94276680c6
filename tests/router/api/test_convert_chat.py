"""A chat is what the contract's messages say, or is refused by the path of what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import router.request
from baton import Chat, ChatMessage, NamedTool, Tool, ToolCall, ToolMode
from baton.errors import InvalidRequest
from baton.v1 import inference_pb2
from baton.wire.convert import put_prompt
from router.api.convert import chat_from_pb
from router.errors import ValidationError
from router.intake.sizes import MAX_PARTS, MAX_SCHEMA_BYTES, MAX_TOOL_CALLS, MAX_TOOLS, check_chat_size

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
calls = st.builds(ToolCall, texts, texts, texts)
messages = st.builds(
    ChatMessage,
    texts,
    texts | st.lists(texts, min_size=1, max_size=3).map(tuple),
    st.lists(calls, max_size=3).map(tuple),
    texts,
    texts,
    texts,
)
tools = st.builds(Tool, texts, texts, texts, st.booleans())
chats = st.builds(
    Chat,
    st.lists(messages, min_size=1, max_size=3),
    tools=st.lists(tools, max_size=3),
    tool_choice=st.none() | st.sampled_from(ToolMode) | st.builds(NamedTool, texts),
    parallel_tool_calls=st.none() | st.booleans(),
)


@given(chats)
def test_the_router_reads_what_the_sdk_writes(chat: Chat) -> None:
    request = inference_pb2.GenerateRequest()
    put_prompt(request, chat)
    found = chat_from_pb(inference_pb2.ChatInput.FromString(request.chat.SerializeToString()))
    for message, read in zip(chat.messages, found.messages, strict=True):
        content = message.content if isinstance(message.content, str) else "\n".join(message.content)
        assert read == router.request.Message(
            message.role,
            content,
            tuple(router.request.ToolCall(call.id, call.name, call.arguments) for call in message.tool_calls),
            message.tool_call_id,
            message.name,
            message.reasoning,
        )
    assert [(tool.name, tool.description, tool.parameters, tool.strict) for tool in found.tools] == [
        (tool.name, tool.description, tool.parameters, tool.strict) for tool in chat.tools
    ]
    choice = chat.tool_choice
    assert found.named_tool == (choice.name if isinstance(choice, NamedTool) else None)
    modes = {None: 0, ToolMode.AUTO: 1, ToolMode.NONE: 2, ToolMode.REQUIRED: 3}
    assert found.tool_mode == (modes[choice] if choice is None or isinstance(choice, ToolMode) else 0)
    assert found.parallel_tool_calls == chat.parallel_tool_calls


def message(content: str = "", parts: Sequence[dict[str, str]] = ()) -> inference_pb2.ChatInput:
    found = inference_pb2.ChatMessage(role="user", content=content)
    for part in parts:
        found.parts.add(**part)
    return inference_pb2.ChatInput(messages=[inference_pb2.ChatMessage(role="system"), found])


def test_parts_are_lines_of_one_text() -> None:
    found = chat_from_pb(message(parts=[{"text": "a"}, {"type": "text", "text": ""}, {"text": "b"}]))
    assert found.messages[1].content == "a\n\nb"


@pytest.mark.parametrize(
    ("chat", "field", "says"),
    [
        (
            message(parts=[{"text": "a"}, {"type": "image_url"}]),
            "chat.messages[1].parts[1].type",
            "'image_url'",
        ),
        (message("a", [{"text": "b"}]), "chat.messages[1].parts", "unset, beside"),
    ],
)
def test_parts_that_cannot_be_read_are_refused_by_name(
    chat: inference_pb2.ChatInput, field: str, says: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        chat_from_pb(chat)
    assert refused.value.fields == (field,)
    assert says in str(refused.value)


def big(**lists: int) -> inference_pb2.ChatInput:
    chat = message(parts=[{"text": "a"}] * lists.get("parts", 0))
    chat.messages[1].tool_calls.extend([inference_pb2.ToolCall()] * lists.get("calls", 0))
    chat.tools.extend([inference_pb2.Tool()] * lists.get("tools", 0))
    chat.tools.extend([inference_pb2.Tool(parameters="é" * (lists.get("schema", 0) // 4))] * 2)
    return chat


@pytest.mark.parametrize(
    ("name", "limit", "field"),
    [
        ("parts", MAX_PARTS, "chat.messages[1].parts"),
        ("calls", MAX_TOOL_CALLS, "chat.messages[1].tool_calls"),
        ("tools", MAX_TOOLS - 2, "chat.tools"),
        ("schema", MAX_SCHEMA_BYTES, "chat.tools"),
    ],
)
def test_a_chat_may_be_as_large_as_stated_and_no_larger(name: str, limit: int, field: str) -> None:
    check_chat_size(big(**{name: limit}))
    with pytest.raises(ValidationError) as refused:
        check_chat_size(big(**{name: limit + 4}))
    assert refused.value.fields == (field,)


NUMBER: Any = ChatMessage("user", 5)  # type: ignore[arg-type]  # callers without a type checker


@pytest.mark.parametrize(
    ("given_messages", "field"), [(["hi"], "chat.messages[0]"), ([NUMBER], "chat.messages[0].content")]
)
def test_what_is_no_message_is_refused_unsent(given_messages: list[Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        put_prompt(inference_pb2.GenerateRequest(), Chat(given_messages))
    assert refused.value.field == field
