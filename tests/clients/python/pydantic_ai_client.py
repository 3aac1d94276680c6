"""pydantic-ai by chats, by responses and by Anthropic's API: tools, streams, output types."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

PLAIN, RAIN = os.environ["PLAIN"], os.environ["RAIN"]


class Report(BaseModel):
    city: str
    degrees: int


async def use(model: Any, *, has_formats: bool) -> None:
    asked: list[str] = []

    def weather(city: str) -> str:
        """Say what the weather is."""
        asked.append(city)
        return "rain"

    agent = Agent(model, instructions="Be brief.", tools=[weather])
    found = await agent.run("Do script weather.")
    assert found.output == RAIN, found.output
    found = await agent.run("Now script plain.", message_history=found.all_messages())
    assert found.output == PLAIN, found.output
    async with agent.run_stream("Do script weather.") as stream:
        pieces = [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
    assert "".join(pieces) == RAIN, pieces
    assert len(pieces) > 2, pieces
    assert asked == ["Oslo", "Oslo"], asked

    expected = Report(city="Bergen", degrees=7)
    by_tool = await Agent(model, output_type=Report).run("Do script extract.")
    assert by_tool.output == expected, by_tool.output
    if has_formats:
        by_format = await Agent(model, output_type=NativeOutput(Report)).run("Do script report.")
        assert by_format.output == expected, by_format.output


async def main() -> None:
    url, name = os.environ["BATON_URL"], os.environ["BATON_MODEL"]
    openai = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    anthropic = AnthropicProvider(base_url=url, api_key="none")
    await use(OpenAIChatModel(name, provider=openai), has_formats=True)
    await use(OpenAIResponsesModel(name, provider=openai), has_formats=True)
    await use(AnthropicModel(name, provider=anthropic), has_formats=False)


asyncio.run(main())
