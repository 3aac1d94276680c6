"""Tools: whatever the model says, forced calls name a tool and their arguments validate."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import pytest_asyncio

from baton import (
    AsyncClient,
    Chat,
    ChatMessage,
    JsonSchema,
    NamedTool,
    Regex,
    Sampling,
    Stop,
    Tool,
    ToolCall,
    ToolMode,
    message_of,
)
from baton.errors import InvalidRequest
from baton.types import Completion, FinishReason
from baton.types.chat import ToolChoice
from model_output.formats import ChatFormats, OutputParser, ToolCallArguments, ToolCallBegun
from model_output.formats import Tool as FormatTool
from tests.fleets import NewFleet

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
SWITCH: dict[str, Any] = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}
TOOLS = [
    Tool("get_weather", "The weather in a city.", WEATHER),
    Tool("switch", parameters=json.dumps(SWITCH)),
]
ASKED = Chat([ChatMessage("user", "How warm is it?")], tools=TOOLS)
UNIQUE = Tool("f", parameters={"properties": {"a": {"type": "array", "uniqueItems": True}}})
WILD = Sampling(temperature=5.0, seed=3, n=4)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(new_fleet: NewFleet) -> AsyncIterator[AsyncClient]:
    async with (
        new_fleet(placement="disaggregated") as fleet,
        AsyncClient(fleet.router_addresses) as found,
    ):
        yield found


def calls_of(completion: Completion) -> list[list[tuple[str, str]]]:
    """Return the calls of each choice that ended by itself: names and arguments."""
    formats = ChatFormats("hermes", "")
    names = [FormatTool(tool.name) for tool in TOOLS]
    found = []
    for choice in completion.choices:
        if choice.finish_reason is not FinishReason.EOS:
            continue
        parser = OutputParser(formats, names, seed="")
        deltas = parser.feed(choice.text) + parser.finish()
        begun = [delta.name for delta in deltas if isinstance(delta, ToolCallBegun)]
        arguments = [""] * len(begun)
        for delta in deltas:
            if isinstance(delta, ToolCallArguments):
                arguments[delta.index] += delta.text
        found.append(list(zip(begun, arguments, strict=True)))
    return found


@pytest.mark.parametrize("choice", [ToolMode.REQUIRED, NamedTool("switch"), NamedTool("get_weather")])
@pytest.mark.parametrize("parallel", [None, False])
async def test_forced_calls_validate(client: AsyncClient, choice: ToolChoice, parallel: bool | None) -> None:
    chat = replace(ASKED, tool_choice=choice, parallel_tool_calls=parallel)
    completion = await client.complete(chat, sampling=WILD, stop=Stop(max_tokens=300))
    schemas = {"get_weather": WEATHER, "switch": SWITCH}
    ended = calls_of(completion)
    assert ended
    for calls in ended:
        assert calls
        for name, arguments in calls:
            jsonschema.validate(json.loads(arguments), schemas[name])
            assert not isinstance(choice, NamedTool) or name == choice.name
        if parallel is False or isinstance(choice, NamedTool):
            assert len(calls) == 1


@pytest.mark.parametrize(
    "change", [{"parallel_tool_calls": False}, {"tools": [replace(TOOLS[0], strict=True)]}]
)
async def test_calls_that_the_model_is_free_to_make_may_have_rules(
    client: AsyncClient, change: dict[str, Any]
) -> None:
    """A model that knows no tools makes no call, and says what it would have said without the rules."""
    sampling, stop = Sampling(temperature=0), Stop(max_tokens=12)
    chat = replace(ASKED, **change)
    ruled = await client.complete(chat, sampling=sampling, stop=stop)
    free = replace(chat, parallel_tool_calls=None, tools=[replace(tool, strict=False) for tool in chat.tools])
    assert ruled.text == (await client.complete(free, sampling=sampling, stop=stop)).text
    assert (ruled.tool_format, ruled.reasoning_open) == ("hermes", False)
    with pytest.raises(InvalidRequest) as refused:
        await client.complete(replace(chat, tools=[*chat.tools, UNIQUE]))
    assert refused.value.field == f"chat.tools[{len(chat.tools)}].parameters"


@pytest.mark.parametrize("mode", [ToolMode.AUTO, ToolMode.NONE, ToolMode.REQUIRED])
async def test_a_choice_calls_tools_or_keeps_to_its_format(client: AsyncClient, mode: ToolMode) -> None:
    answer: dict[str, Any] = {
        "type": "object",
        "properties": {"warm": {"type": "boolean"}},
        "required": ["warm"],
        "additionalProperties": False,
    }
    chat = replace(ASKED, tool_choice=mode)
    completion = await client.complete(
        chat, sampling=WILD, stop=Stop(max_tokens=300), output_format=JsonSchema(answer)
    )
    schemas = {"get_weather": WEATHER, "switch": SWITCH}
    kinds = set()
    for choice in completion.choices:
        if choice.finish_reason is not FinishReason.EOS:
            continue
        message = message_of(completion, choice.index)
        assert bool(message.content) != bool(message.tool_calls)
        kinds.add(bool(message.tool_calls))
        if message.content:
            jsonschema.validate(json.loads(str(message.content)), answer)
        for call in message.tool_calls:
            jsonschema.validate(json.loads(call.arguments), schemas[call.name])
    assert kinds <= {mode is ToolMode.REQUIRED} or mode is ToolMode.AUTO
    assert kinds


async def test_a_tool_at_fault_beside_a_format_is_refused_by_its_path(client: AsyncClient) -> None:
    chat = replace(ASKED, tools=[*TOOLS, UNIQUE])
    with pytest.raises(InvalidRequest, match="uniqueItems") as refused:
        await client.complete(chat, output_format=JsonSchema({"type": "null"}))
    assert refused.value.field == "chat.tools[2].parameters"
    with pytest.raises(InvalidRequest, match="'not'") as wrong:
        await client.complete(chat, output_format=JsonSchema({"not": {}}))
    assert wrong.value.field == "output_format.json_schema"


async def test_a_model_names_its_formats(client: AsyncClient) -> None:
    (model,) = await client.models()
    assert (model.model_type, model.tool_format, model.reasoning_format) == ("llama", "hermes", "")


async def test_a_conversation_goes_on_after_a_call(client: AsyncClient) -> None:
    call = ToolCall("c1", "get_weather", '{"city": "Rome", "days": 1}')
    chat = replace(
        ASKED,
        messages=[
            *ASKED.messages,
            ChatMessage("assistant", tool_calls=[call]),
            ChatMessage("tool", ["31", "degrees"], tool_call_id="c1"),
        ],
    )
    text = await client.detokenize(await client.count_tokens(chat), skip_special_tokens=False)
    assert '<tools>\n{"type": "function", "function": {"name": "get_weather"' in text
    assert (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "days": 1}}\n</tool_call>' in text
    )
    assert "<tool_response>\n31\ndegrees\n</tool_response><|end|><|assistant|>" in text
    hidden = await client.count_tokens(replace(chat, tool_choice=ToolMode.NONE))
    assert "<tools>" not in await client.detokenize(hidden)
    assert (await client.complete(chat, stop=Stop(max_tokens=4))).choices


BAD = [
    (replace(ASKED, tools=[*TOOLS, Tool("switch")]), "chat.tools[2].name", "each name once"),
    (replace(ASKED, tools=[Tool("a b")]), "chat.tools[0].name", "letters, digits"),
    (replace(ASKED, tools=[Tool("")]), "chat.tools[0].name", "letters, digits"),
    (replace(ASKED, tools=[Tool("f", parameters="{")]), "chat.tools[0].parameters", "JSON Schema"),
    (replace(ASKED, tools=[Tool("f", parameters="[]")]), "chat.tools[0].parameters", "JSON Schema"),
    (replace(ASKED, tools=[Tool("f", parameters="[" * 9000)]), "chat.tools[0].parameters", "JSON Schema"),
    (replace(ASKED, tools=[Tool("f", parameters={"type": "string"})]), "chat.tools[0].parameters", "object"),
    (replace(ASKED, tools=[Tool("f", "\ud800")]), "chat.tools[0].description", "text"),
    (replace(ASKED, tools=[Tool("f", parameters='{"title": "\\ud800"}')]), "chat.messages", "Unicode"),
    (replace(ASKED, tools=[Tool(f"f{i}") for i in range(129)]), "chat.tools", "at most 128"),
    (replace(ASKED, tools=[Tool("f", parameters={"title": "x" * (300 << 10)})]), "chat.tools", "bytes"),
    (replace(ASKED, tools=(), tool_choice=ToolMode.AUTO), "chat.tool_choice", "unset, without chat.tools"),
    (replace(ASKED, tools=(), parallel_tool_calls=True), "chat.parallel_tool_calls", "unset, without"),
    (replace(ASKED, tool_choice=NamedTool("f")), "chat.tool_choice.name", "one of get_weather, switch"),
    (replace(ASKED, template_arguments={"tools": []}), "chat.template_arguments", "names other than"),
    (
        replace(
            ASKED,
            tools=[*TOOLS, UNIQUE],
            tool_choice=ToolMode.REQUIRED,
        ),
        "chat.tools[2].parameters",
        "uniqueItems",
    ),
    (Chat([ChatMessage("user", tool_calls=[ToolCall("", "f", "")])]), "chat.messages[0].tool_calls", "role"),
    (Chat([ChatMessage("user", "a", reasoning="b")]), "chat.messages[0].reasoning", "role"),
    (
        Chat([ChatMessage("assistant", "a", tool_calls=[ToolCall("", "", "")])]),
        "chat.messages[0].tool_calls[0].name",
        "the name of a tool",
    ),
    (Chat([ChatMessage("critic", "a")]), "chat.messages", "expected system, user, assistant or tool"),
]  # fmt: skip


@pytest.mark.parametrize(("chat", "field", "accepted"), BAD, ids=[f"{f}-{a}"[:60] for _, f, a in BAD])
async def test_what_makes_no_sense_is_refused_by_its_path(
    client: AsyncClient, chat: Chat, field: str, accepted: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await client.complete(chat)
    assert refused.value.field == field
    assert accepted in str(refused.value)


@pytest.mark.parametrize(
    "arguments", ["", "null", '{"a": ', "[1]", '{"a": NaN}', '{"a": 1e999}', "{}", "a\n"]
)
async def test_any_text_may_come_back_as_the_arguments_of_a_past_call(
    client: AsyncClient, arguments: str
) -> None:
    past = ChatMessage("assistant", "", tool_calls=[ToolCall("c", "get_weather", arguments)])
    result = ChatMessage("tool", "That is no JSON.", tool_call_id="c")
    chat = replace(ASKED, messages=[*ASKED.messages, past, result])
    completion = await client.complete(chat, stop=Stop(max_tokens=2))
    assert completion.choices[0].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"output_format": Regex("a")}, "output_format"),
        ({"sampling": Sampling(allowed_token_ids=(1, 2))}, "sampling.allowed_token_ids"),
        ({"sampling": Sampling(bad_words=("a",))}, "sampling.bad_words"),
        ({"stop": Stop(min_tokens=3)}, "stop.min_tokens"),
        ({"stop": Stop(ignore_eos=True)}, "stop.ignore_eos"),
    ],
)
async def test_rules_that_could_contradict_forced_calls_are_refused(
    client: AsyncClient, change: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await client.complete(replace(ASKED, tool_choice=ToolMode.REQUIRED), **change)
    assert refused.value.field == field
