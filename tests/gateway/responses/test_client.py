"""OpenAI's own client, unchanged, against `/v1/responses` of a fleet with its Redis."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pydantic
import pytest
import pytest_asyncio

from baton import AsyncClient
from baton.fleet import Fleet
from tests.fleet.driving import EXACT, assert_all_is_freed, until
from tests.fleets import NewFleet
from tools.house.source_tree import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

MODEL = "demo_model"
ASKED: dict[str, Any] = {"model": MODEL, "input": "How do I read a file?", "temperature": 0}
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Weather(pydantic.BaseModel):
    """A format whose texts are short."""

    model_config = pydantic.ConfigDict(extra="forbid")

    hot: bool
    wet: bool


@dataclass(frozen=True)
class Served:
    fleet: Fleet
    sdk: AsyncClient
    client: Any


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(new_fleet: NewFleet) -> AsyncIterator[Served]:
    async with (
        new_fleet(prefill=0, placement="aggregated", gateways=1, extra_args={"decode": EXACT}) as fleet,
        AsyncClient(fleet.router_addresses) as sdk,
        openai.AsyncOpenAI(base_url=f"{fleet.gateway_urls[0]}/v1", api_key="unused", max_retries=0) as client,
    ):
        yield Served(fleet, sdk, client)


async def test_a_response_is_the_same_as_a_chat_whole_and_streamed(served: Served) -> None:
    whole = await served.client.responses.create(**ASKED, max_output_tokens=24)
    chat = await served.client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": ASKED["input"]}],
        max_tokens=24,
        temperature=0,
    )
    assert whole.output_text == chat.choices[0].message.content
    assert whole.usage.total_tokens == chat.usage.total_tokens
    events = []
    async with served.client.responses.stream(**ASKED, max_output_tokens=24) as stream:
        events = [event async for event in stream]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == whole.output_text
    assert events[-1].response.status == whole.status


async def test_a_conversation_goes_on_by_the_id_alone(served: Served) -> None:
    first = await served.client.responses.create(**ASKED, max_output_tokens=8)
    again = await served.client.responses.create(
        model=MODEL,
        previous_response_id=first.id,
        input="And then?",
        temperature=0,
        max_output_tokens=8,
    )
    by_hand = await served.client.responses.create(
        model=MODEL,
        input=[
            {"role": "user", "content": ASKED["input"]},
            *first.output,
            {"role": "user", "content": "And then?"},
        ],
        temperature=0,
        max_output_tokens=8,
        store=False,
    )
    assert again.output_text == by_hand.output_text
    assert again.usage.input_tokens == by_hand.usage.input_tokens > first.usage.input_tokens
    found = await served.client.responses.retrieve(again.id)
    assert found.output_text == again.output_text
    items = [item async for item in served.client.responses.input_items.list(again.id, order="asc", limit=2)]
    assert [item.role for item in items] == ["user", "assistant", "user"]
    await served.client.responses.delete(again.id)
    with pytest.raises(openai.NotFoundError):
        await served.client.responses.retrieve(again.id)
    with pytest.raises(openai.NotFoundError):
        await served.client.responses.retrieve(by_hand.id)


async def test_a_forced_call_and_its_result(served: Served) -> None:
    asked = {**ASKED, "tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    async with served.client.responses.stream(**asked) as stream:
        response = await stream.get_final_response()
    [call] = response.output
    assert call.name == "weather"
    assert set(json.loads(call.arguments)) == {"city"}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    after = await served.client.responses.create(
        model=MODEL, previous_response_id=response.id, input=[result], tools=[WEATHER], max_output_tokens=8
    )
    assert after.usage.input_tokens > response.usage.input_tokens


async def test_a_format_is_parsed(served: Served) -> None:
    parsed = await served.client.responses.parse(**ASKED, text_format=Weather)
    assert isinstance(parsed.output_parsed, Weather)
    assert parsed.output_parsed == Weather.model_validate_json(parsed.output_text)


async def test_errors_have_the_clients_own_types(served: Served) -> None:
    with pytest.raises(openai.BadRequestError) as wrong:
        await served.client.responses.create(**ASKED, background=True)
    assert wrong.value.param == "background"
    with pytest.raises(openai.BadRequestError) as impossible:
        # As long as no processor computes it within a millisecond.
        await served.client.responses.create(
            model=MODEL, input="word " * 800, extra_body={"slo": {"ttft_ms": 1}}
        )
    assert impossible.value.code == "slo_impossible"
    with pytest.raises(openai.BadRequestError) as unknown:
        await served.client.responses.create(**ASKED, previous_response_id="resp_unknown")
    assert unknown.value.code == "previous_response_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        await served.client.responses.create(model=MODEL, input="word " * 5000)
    assert (long.value.param, long.value.code) == ("input", "prompt_too_long")


DOORS = [
    "README.md",
    *(f"docs/{name}.md" for name in ("start", "openai", "anthropic", "responses", "batches", "grpc")),
]
CALLED = """
from baton import Chat, ChatMessage

async def call():
    async with AsyncClient("127.0.0.1:50051") as client:
        print(await ask(client))
        await show(client, Chat([ChatMessage("user", "Hello")]))

import asyncio
asyncio.run(call())
"""
"""Calls the functions that docs/grpc.md shows."""


def shown_in(document: str, language: str) -> str:
    """The blocks of a document that are in a language, one after the other."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return "\n".join(re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("document", DOORS)
async def test_the_code_of_documents_runs_as_it_stands(served: Served, document: str, tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").write_text(shown_in("docs/batches.md", "json"), encoding="utf-8")
    code = shown_in(document, "python") + (CALLED if document == "docs/grpc.md" else "")
    code = re.sub(r"\b(ttft|tpot)_ms=\d+", r"\1_ms=600_000", code)  # however slow this machine is
    code = code.replace("http://127.0.0.1:8000", served.fleet.gateway_urls[0])
    code = code.replace("127.0.0.1:50051", served.fleet.router_addresses[0])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, failed = await process.communicate()
    assert process.returncode == 0, failed.decode()
    assert said
    await assert_all_is_freed(served.fleet, served.sdk)


async def test_a_cancelled_stream_ends_and_frees_the_fleet(served: Served) -> None:
    endless = {**ASKED, "max_output_tokens": 3000, "extra_body": {"ignore_eos": True}}
    stream = await served.client.responses.create(**endless, stream=True)
    events = aiter(stream)
    response_id = (await anext(events)).response.id
    assert (await served.client.responses.cancel(response_id)).status == "cancelled"
    last = [event async for event in events][-1]
    assert (last.type, last.response.status) == ("response.failed", "cancelled")
    assert (await served.client.responses.retrieve(response_id)).status == "cancelled"
    stream = await served.client.responses.create(**endless, stream=True)
    left = (await anext(aiter(stream))).response.id
    await stream.close()
    await assert_all_is_freed(served.fleet, served.sdk)

    async def gone() -> bool:
        try:
            await served.client.responses.retrieve(left)
        except openai.NotFoundError:
            return True
        return False

    await until(gone, "nothing is kept for a caller who left")
