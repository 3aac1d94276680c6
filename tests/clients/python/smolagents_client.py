"""smolagents: agents that call tools, and agents that write code, whole and streamed."""

from __future__ import annotations

import os

from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool

asked: list[str] = []


def weather(city: str) -> str:
    """Say what the weather is.

    Args:
        city: Where it is asked for.
    """
    asked.append(city)
    return "rain"


model = OpenAIModel(
    model_id=os.environ["BATON_MODEL"], api_base=f"{os.environ['BATON_URL']}/v1", api_key="none"
)
for stream in (False, True):
    calling = ToolCallingAgent(tools=[tool(weather)], model=model, max_steps=3, stream_outputs=stream)
    assert calling.run("Do script steps.") == "rain in Hamar"
    coding = CodeAgent(tools=[tool(weather)], model=model, max_steps=3, stream_outputs=stream)
    assert coding.run("Do script code.") == "rain in Moss"
assert asked == ["Hamar", "Moss", "Hamar", "Moss"], asked
