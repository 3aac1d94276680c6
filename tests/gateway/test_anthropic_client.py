"""Anthropic's own client, unchanged, against a fleet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pydantic
import pytest
import pytest_asyncio

from tests.fleets import NewFleet
from tests.gateway.running import running_gateway

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

MODEL = "demo_model"
HELLO = [{"role": "user", "content": [{"type": "text", "text": "How do I read a file?"}]}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(new_fleet: NewFleet) -> AsyncIterator[Any]:
    async with (
        new_fleet(prefill=0, placement="aggregated") as fleet,
        running_gateway(fleet.router_addresses) as gateway,
        anthropic.AsyncAnthropic(base_url=gateway.url, api_key="unused", max_retries=0) as found,
    ):
        yield found


async def test_a_message_is_the_same_whole_and_streamed(client: Any) -> None:
    asked = {
        "model": MODEL,
        "max_tokens": 12,
        "messages": HELLO,
        "system": "Be brief.",
        "extra_body": {"temperature": 0},
    }
    whole = await client.messages.create(**asked)
    async with client.messages.stream(**asked) as stream:
        pieces = [text async for text in stream.text_stream]
        final = await stream.get_final_message()
    assert "".join(pieces) == whole.content[0].text == final.content[0].text
    assert whole._request_id == whole.model_extra["baton"]["request_id"]
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    read = whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    counted = await client.messages.count_tokens(model=MODEL, messages=HELLO, system="Be brief.")
    assert counted.input_tokens == read


async def test_a_stop_sequence_is_named(client: Any) -> None:
    asked = {"model": MODEL, "max_tokens": 40, "messages": HELLO, "extra_body": {"temperature": 0}}
    text = (await client.messages.create(**asked)).content[0].text
    stopped = await client.messages.create(**asked, stop_sequences=[text[3:6]])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", text[3:6])
    assert stopped.content[0].text == text[: text.index(text[3:6])]


async def test_an_assistants_last_message_is_continued(client: Any) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "The file"}]
    found = await client.messages.create(
        model=MODEL, max_tokens=3, messages=begun, extra_body={"temperature": 0}
    )
    assert found.usage.output_tokens <= 3


async def test_a_forced_tool_is_used_and_its_result_is_read(client: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}},
        "required": ["city"],
        "additionalProperties": False,
    }
    asked: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 200,
        "messages": HELLO,
        "tools": [{"name": "get_weather", "input_schema": schema}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "extra_body": {"temperature": 0},
    }
    whole = await client.messages.create(**asked)
    [use] = whole.content
    assert (use.type, use.name, set(use.input)) == ("tool_use", "get_weather", {"city"})
    assert whole.stop_reason == "tool_use"
    async with client.messages.stream(**asked) as stream:
        final = await stream.get_final_message()
    assert final.content[0].input == use.input
    spoken = {
        "role": "assistant",
        "content": [block.model_dump(exclude_none=True) for block in whole.content],
    }
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "It rains."}
    messages = [*HELLO, spoken, {"role": "user", "content": [result]}]
    told = await client.messages.create(**asked | {"messages": messages, "tool_choice": {"type": "none"}})
    assert {block.type for block in told.content} == {"text"}


class Weather(pydantic.BaseModel):
    """A format whose texts are short."""

    hot: bool
    wet: bool


async def test_a_format_is_parsed_whole_and_streamed(client: Any) -> None:
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 60, "messages": HELLO, "output_format": Weather}
    greedy = {"extra_body": {"temperature": 0}}
    whole = await client.messages.parse(**asked, **greedy)
    assert isinstance(whole.parsed_output, Weather)
    assert whole.stop_reason == "end_turn"
    async with client.messages.stream(**asked, **greedy) as stream:
        assert (await stream.get_final_message()).parsed_output == whole.parsed_output
    unkept = {"format": {"type": "json_schema", "schema": {"not": {}}}}
    with pytest.raises(anthropic.BadRequestError, match="cannot be guaranteed") as refused:
        await client.messages.create(model=MODEL, max_tokens=9, messages=HELLO, output_config=unkept)
    assert refused.value.response.json()["error"]["param"] == "output_config.format.schema"


async def test_errors_have_the_clients_own_types(client: Any) -> None:
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.create(model="claude", max_tokens=3, messages=HELLO)
    with pytest.raises(anthropic.BadRequestError) as wrong:
        await client.messages.create(model=MODEL, max_tokens=0, messages=HELLO)
    assert wrong.value.response.json()["error"]["param"] == "max_tokens"
    image = [{"role": "user", "content": [{"type": "image", "source": {}}]}]
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content\[0\].type is 'image'"):
        await client.messages.create(model=MODEL, max_tokens=3, messages=image)
