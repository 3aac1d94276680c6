"""openai-agents by chats and by responses: tools, streams, output types, sessions, handoffs."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    WebSearchTool,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

PLAIN, RAIN = os.environ["PLAIN"], os.environ["RAIN"]
asked: list[str] = []


class Report(BaseModel):
    city: str
    degrees: int


def weather(city: str) -> str:
    """Say what the weather is."""
    asked.append(city)
    return "rain"


async def use(model: Any, *others: Any) -> None:
    agent = Agent("assistant", instructions="Be brief.", model=model, tools=[function_tool(weather), *others])
    session = SQLiteSession("session")
    found = await Runner.run(agent, "Do script weather.", session=session)
    assert found.final_output == RAIN, found.final_output
    found = await Runner.run(agent, "Now script plain.", session=session)
    assert found.final_output == PLAIN, found.final_output

    streamed = Runner.run_streamed(agent, "Do script weather.")
    kinds = [event.type async for event in streamed.stream_events()]
    assert streamed.final_output == RAIN, streamed.final_output
    assert kinds.count("run_item_stream_event") == 3, kinds  # the call, its result, the message
    assert asked == ["Oslo", "Oslo"], asked
    asked.clear()

    reporting = Agent("reporter", model=model, output_type=Report)
    assert (await Runner.run(reporting, "Do script report.")).final_output == Report(city="Bergen", degrees=7)

    helper = Agent("helper", handoff_description="It helps.", model=model)
    handing = Agent("first", model=model, handoffs=[helper])
    found = await Runner.run(handing, "Do script handoff.")
    assert (found.last_agent.name, found.final_output) == ("helper", "The helper has it now.")


async def main() -> None:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{os.environ['BATON_URL']}/v1", api_key="none", max_retries=0)
    name = os.environ["BATON_MODEL"]
    await use(OpenAIChatCompletionsModel(name, client))
    await use(OpenAIResponsesModel(name, client), WebSearchTool())


asyncio.run(main())
