"""Tool calls and reasoning, as OpenAI's own client sends and receives them; the router is scripted."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from baton.v1 import generation_pb2, inference_pb2
from tests.baton.scripted_service import ScriptedRouter, Step, accepted, ended, finished, tokens
from tests.gateway.running import running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = inference_pb2.ListModelsResponse(
    models=[inference_pb2.Model(name="m", architecture="A", max_context_tokens=512, fingerprint="f" * 32)]
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "strict": True,
    },
}
HELLO = [{"role": "user", "content": "How is the weather in Rome?"}]
OUTPUT = (
    "<think>\nThey ask for Rome.\n</think>\n\nI look.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "days": [1, 2]}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_weather", "arguments": {}}\n</tool_call>'
)
EOS = generation_pb2.FINISH_REASON_EOS


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair() -> AsyncIterator[tuple[ScriptedRouter, Any]]:
    async with (
        ScriptedRouter(ListModels=MODEL) as router,
        running_gateway([router.address]) as gateway,
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0) as client,
    ):
        yield router, client


def script(text: str, reason: int = EOS, **formats: Any) -> tuple[Step, ...]:
    """A generation of one token for each character."""
    pieces = [tokens(place, 10, text=character) for place, character in enumerate(text)]
    head = accepted(**({"tool_format": "hermes", "reasoning_format": "think"} | formats))
    return (head, *pieces, ended(len(text), reason=reason), finished())


async def test_calls_and_reasoning_are_the_same_whole_and_streamed(pair: tuple[ScriptedRouter, Any]) -> None:
    router, client = pair
    router.scripts[:] = [script(OUTPUT)]
    asked: dict[str, Any] = {"model": "m", "messages": HELLO, "tools": [WEATHER]}
    whole = (await client.chat.completions.create(**asked)).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.content == "I look."
    assert whole.message.reasoning_content == whole.message.reasoning == "They ask for Rome."
    first, second = whole.message.tool_calls
    assert json.loads(first.function.arguments) == {"city": "Rome", "days": [1, 2]}
    assert (first.function.name, second.function.arguments) == ("get_weather", "{}")
    async with client.chat.completions.stream(**asked) as stream:
        events = [event async for event in stream]
        final = (await stream.get_final_completion()).choices[0]
    assert [
        call.model_dump(exclude={"function": {"parsed_arguments"}, "index": True})
        for call in final.message.tool_calls
    ] == [call.model_dump() for call in whole.message.tool_calls]
    assert (final.message.content, final.finish_reason) == ("I look.", "tool_calls")
    pieces = [
        event.arguments_delta for event in events if event.type == "tool_calls.function.arguments.delta"
    ]
    assert len(pieces) > 20
    thoughts = [
        choice.delta.reasoning_content
        for event in events
        if event.type == "chunk"
        for choice in event.chunk.choices
        if getattr(choice.delta, "reasoning_content", None)
    ]
    assert "".join(thoughts) == "They ask for Rome."


@pytest.mark.parametrize("reason", ["LENGTH", "DEADLINE", "STOP"])
async def test_a_prompt_that_opened_reasoning_and_a_cut_off_call(
    pair: tuple[ScriptedRouter, Any], reason: str
) -> None:
    router, client = pair
    text = 'Hm.</think><tool_call>{"name": "get_weather", "arguments": {"city": "Ro'
    ended_by = generation_pb2.FinishReason.Value(f"FINISH_REASON_{reason}")
    router.scripts[:] = [script(text, ended_by, reasoning_open=True)]
    found = await client.chat.completions.create(model="m", messages=HELLO, tools=[WEATHER])
    message = found.choices[0].message
    assert (message.reasoning, message.content) == ("Hm.", None)
    assert message.tool_calls[0].function.arguments == '{"city": "Ro'
    assert found.choices[0].finish_reason == "length"


async def test_what_is_no_call_stays_content(pair: tuple[ScriptedRouter, Any]) -> None:
    router, client = pair
    text = '<tool_call>{"name": "unknown", "arguments": {}}</tool_call> '
    router.scripts[:] = [script(text)]
    found = await client.chat.completions.create(model="m", messages=HELLO, tools=[WEATHER])
    assert (found.choices[0].message.content, found.choices[0].finish_reason) == (text, "stop")
    async with client.chat.completions.stream(model="m", messages=HELLO, tools=[WEATHER]) as stream:
        assert (await stream.get_final_completion()).choices[0].message.content == text


async def test_a_chat_with_tools_reaches_the_router(pair: tuple[ScriptedRouter, Any]) -> None:
    router, client = pair
    router.scripts[:] = [script("It rains.")]
    router.heard_calls.clear()
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
    }
    await client.chat.completions.create(
        model="m",
        messages=[
            *HELLO,
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "Rome?"},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "rain"}]},
        ],
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        parallel_tool_calls=False,
        reasoning_effort="low",
    )
    [asked] = router.calls("Generate")
    chat = asked.chat
    assert (chat.tools[0].name, chat.tools[0].strict) == ("get_weather", True)
    assert json.loads(chat.tools[0].parameters) == WEATHER["function"]["parameters"]  # type: ignore[index]
    assert (chat.tool_choice.name, chat.parallel_tool_calls) == ("get_weather", False)
    assert chat.template_arguments["reasoning_effort"] == "low"
    _, spoken, result = chat.messages
    assert (spoken.reasoning, spoken.content) == ("Rome?", "")
    assert [(sent.id, sent.name, sent.arguments) for sent in spoken.tool_calls] == [
        ("c1", "get_weather", '{"city": "Rome"}')
    ]
    assert (result.role, result.tool_call_id, result.name, result.content) == (
        "tool",
        "c1",
        "get_weather",
        "rain",
    )
    assert not asked.stop.HasField("skip_special_tokens")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": 5}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tools": [WEATHER], "tool_choice": "always"}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "a"}}]}]},
        "messages[0].tool_calls[0].function.arguments",
    ),
    (
        {"messages": [{"role": "assistant", "content": "a", "function_call": {"name": "a"}}]},
        "messages[0].function_call",
    ),
    ({"messages": [{"role": "tool", "tool_call_id": "1"}]}, "messages[0].content"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"function_call": "auto"}, "function_call"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG)
async def test_wrong_tools_are_refused_by_name(
    pair: tuple[ScriptedRouter, Any], fields: dict[str, Any], param: str
) -> None:
    _, client = pair
    with pytest.raises(openai.BadRequestError) as refused:
        await client.post("/chat/completions", body={"messages": HELLO} | fields, cast_to=object)
    assert refused.value.param == param


async def test_the_field_that_litellm_adds_to_answers_may_come_back(pair: tuple[ScriptedRouter, Any]) -> None:
    router, client = pair
    router.scripts[:] = [script("Yes.")]
    answer = {"role": "assistant", "content": "Why?", "provider_specific_fields": {"refusal": None}}
    await client.chat.completions.create(model="m", messages=[*HELLO, answer, *HELLO])
    sent = router.calls("Generate")[-1].chat.messages[1]
    assert (sent.role, sent.content) == ("assistant", "Why?")
