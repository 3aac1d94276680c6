"""Tool calls and thinking, as Anthropic's own client sends and receives them; the router is scripted."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
import pytest_asyncio

from baton.v1 import generation_pb2, inference_pb2
from tests.baton.scripted_service import ScriptedRouter
from tests.gateway.running import running_gateway
from tests.gateway.test_openai_tools import MODEL, OUTPUT, script

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "The weather of a city", "input_schema": SCHEMA}
HELLO = [{"role": "user", "content": "How is the weather in Rome?"}]
ASKED: dict[str, Any] = {"model": "m", "max_tokens": 99, "messages": HELLO, "tools": [WEATHER]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair() -> AsyncIterator[tuple[ScriptedRouter, Any]]:
    async with (
        ScriptedRouter(ListModels=MODEL, CountTokens=inference_pb2.CountTokensResponse()) as router,
        running_gateway([router.address]) as gateway,
        anthropic.AsyncAnthropic(base_url=gateway.url, api_key="unused", max_retries=0) as client,
    ):
        yield router, client


async def test_calls_and_thinking_are_the_same_whole_and_streamed(pair: tuple[ScriptedRouter, Any]) -> None:
    router, client = pair
    router.scripts[:] = [script(OUTPUT)]
    whole = await client.messages.create(**ASKED)
    thought, text, first, second = whole.content
    assert (thought.type, thought.thinking) == ("thinking", "They ask for Rome.")
    assert (text.type, text.text) == ("text", "I look.")
    assert (first.type, first.name, first.input) == (
        "tool_use",
        "get_weather",
        {"city": "Rome", "days": [1, 2]},
    )
    assert second.input == {}
    assert whole.stop_reason == "tool_use"
    async with client.messages.stream(**ASKED) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_message()
    assert [block.model_dump() for block in final.content] == [block.model_dump() for block in whole.content]
    assert final.stop_reason == "tool_use"
    assert (kinds.count("content_block_start"), kinds.count("content_block_stop")) == (4, 4)
    assert kinds.count("input_json") > 20


async def test_blocks_are_in_the_order_in_which_the_model_wrote_them(
    pair: tuple[ScriptedRouter, Any],
) -> None:
    router, client = pair
    calls = [
        f'<tool_call>{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}</tool_call>'
        for city in "AB"
    ]
    router.scripts[:] = [script(f"<think>Two.</think>First A.{calls[0]}Then B.{calls[1]}Done.")]
    whole = await client.messages.create(**ASKED)
    async with client.messages.stream(**ASKED) as stream:
        final = await stream.get_final_message()
    kinds = ["thinking", "text", "tool_use", "text", "tool_use", "text"]
    assert [block.type for block in whole.content] == kinds
    assert [block.text for block in whole.content if block.type == "text"] == ["First A.", "Then B.", "Done."]
    assert [block.input["city"] for block in whole.content if block.type == "tool_use"] == ["A", "B"]
    assert [block.model_dump() for block in final.content] == [block.model_dump() for block in whole.content]


@pytest.mark.parametrize("reason", ["LENGTH", "DEADLINE", "STOP"])
async def test_a_cut_off_call_is_in_no_whole_message(pair: tuple[ScriptedRouter, Any], reason: str) -> None:
    router, client = pair
    text = 'I look.<tool_call>{"name": "get_weather", "arguments": {"city": "Ro'
    router.scripts[:] = [script(text, generation_pb2.FinishReason.Value(f"FINISH_REASON_{reason}"))]
    found = await client.messages.create(**ASKED)
    assert [block.model_dump(exclude_none=True) for block in found.content] == [
        {"type": "text", "text": "I look."}
    ]
    assert found.stop_reason == "max_tokens"
    async with client.messages.stream(**ASKED) as stream:
        pieces = [event.partial_json async for event in stream if event.type == "input_json"]
    assert "".join(pieces) == '{"city": "Ro'


async def test_an_empty_message_is_an_empty_text(pair: tuple[ScriptedRouter, Any]) -> None:
    router, client = pair
    router.scripts[:] = [script("")]
    assert (await client.messages.create(**ASKED)).content[0].text == ""
    async with client.messages.stream(**ASKED) as stream:
        assert (await stream.get_final_message()).content[0].text == ""


async def test_a_chat_with_tools_reaches_the_router(pair: tuple[ScriptedRouter, Any]) -> None:
    router, client = pair
    router.scripts[:] = [script("It rains.")]
    router.heard_calls.clear()
    spoken = [
        {"type": "thinking", "thinking": "Rome?", "signature": ""},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "c1", "name": "get_weather", "input": {"city": "Rome"}},
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "rain"}]},
        {"type": "text", "text": "So?"},
    ]
    messages = [*HELLO, {"role": "assistant", "content": spoken}, {"role": "user", "content": results}]
    thinking = {"type": "enabled", "budget_tokens": 1024}
    choice = {"type": "any", "disable_parallel_tool_use": True}
    await client.messages.create(**ASKED | {"messages": messages}, tool_choice=choice, thinking=thinking)
    await client.messages.count_tokens(model="m", messages=messages, tools=[WEATHER])
    chat = router.calls("Generate")[0].chat
    assert (chat.tools[0].name, json.loads(chat.tools[0].parameters)) == ("get_weather", SCHEMA)
    assert (chat.tool_choice.mode, chat.parallel_tool_calls) == (inference_pb2.TOOL_MODE_REQUIRED, False)
    assert chat.template_arguments["enable_thinking"] is True
    _, said, result, asked = chat.messages
    assert (said.reasoning, said.content, said.tool_calls[0].arguments) == (
        "Rome?",
        "I look.",
        '{"city": "Rome"}',
    )
    assert (result.role, result.tool_call_id, result.name, result.content) == (
        "tool",
        "c1",
        "get_weather",
        "rain",
    )
    assert (asked.role, asked.content) == ("user", "So?")
    counted = router.calls("CountTokens")[-1]
    assert (list(counted.chat.messages), list(counted.chat.tools)) == (list(chat.messages), list(chat.tools))


async def test_a_format_its_effort_and_the_user_reach_the_router(pair: tuple[ScriptedRouter, Any]) -> None:
    router, client = pair
    router.scripts[:] = [script("{}")]
    router.heard_calls.clear()
    messages = [*HELLO, {"role": "system", "content": "Answer in JSON."}]
    config = {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}}
    asked: dict[str, Any] = {"model": "m", "messages": messages, "output_config": config}
    sampling = {"temperature": 0.5, "top_k": 7, "top_p": 0.25}
    await client.messages.create(
        **asked, max_tokens=9, metadata={"user_id": "u"}, stop_sequences=["x"], extra_body=sampling
    )
    await client.messages.count_tokens(**asked)
    [sent], [counted] = router.calls("Generate"), router.calls("CountTokens")
    assert json.loads(sent.output_format.json_schema) == SCHEMA
    assert (sent.user, sent.chat.messages[1].role) == ("u", "system")
    assert sent.chat.template_arguments["reasoning_effort"] == "low"
    assert counted.chat == sent.chat
    assert {name: getattr(sent.sampling, name) for name in sampling} == sampling
    assert (sent.stop.max_tokens, list(sent.stop.stop_strings)) == (9, ["x"])


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"output_config": {"format": {"type": "json"}}}, "output_config.format.type"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ({"output_config": {"effort": 5}}, "output_config.effort"),
    ({"tools": [{"type": 5, "name": "a", "input_schema": {}}]}, "tools[0].type"),
    ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
    ({"tools": [WEATHER], "tool_choice": {"type": "all"}}, "tool_choice.type"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"thinking": {"type": "always"}}, "thinking.type"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0].type"),
    (
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "a"}]}]},
        "messages[0].content[0].input",
    ),
    (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image"}]}],
                }
            ]
        },
        "messages[0].content[0].content[0].type",
    ),
]


@pytest.mark.parametrize(("fields", "param"), WRONG)
async def test_wrong_tools_are_refused_by_name(
    pair: tuple[ScriptedRouter, Any], fields: dict[str, Any], param: str
) -> None:
    _, client = pair
    body = {"max_tokens": 9, "messages": HELLO} | fields
    with pytest.raises(anthropic.BadRequestError) as refused:
        await client.post("/v1/messages", body=body, cast_to=object)
    assert refused.value.response.json()["error"]["param"] == param
