"""LiteLLM, unchanged, by its providers for OpenAI's API, for vLLM and for Anthropic's API."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import litellm
from pydantic import BaseModel, Field

URL = os.environ["BATON_URL"]
EXPECTED = os.environ["BATON_EXPECTED"]
"""The greedy answer to `HELLO` as the fleet gives it over gRPC."""
HELLO = [{"role": "user", "content": "How do I read a file?"}]
# No processor computes it within a millisecond, as it may the new tokens of a prompt that was sent before.
LONG = [{"role": "user", "content": "word " * 800}]
PROVIDERS = {"openai": f"{URL}/v1", "hosted_vllm": f"{URL}/v1", "anthropic": URL}


class Weather(BaseModel):
    place: str = Field(max_length=8)
    degrees: int = Field(ge=-50, le=50)
    is_dry: bool


def fields(provider: str = "openai", **more: object) -> dict[str, object]:
    named = {"model": f"{provider}/demo_model", "api_base": PROVIDERS[provider], "api_key": "none"}
    return named | {"messages": HELLO, "temperature": 0, "max_tokens": 24, "num_retries": 0} | more


def check_each_provider() -> None:
    for provider in PROVIDERS:
        whole = litellm.completion(**fields(provider))
        assert whole.choices[0].message.content == EXPECTED, (provider, whole)
        assert whole.choices[0].finish_reason == "stop"
        chunks = list(
            litellm.completion(**fields(provider), stream=True, stream_options={"include_usage": True})
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == EXPECTED, (provider, text)
        usage = next(chunk.usage for chunk in reversed(chunks) if getattr(chunk, "usage", None))
        assert usage.completion_tokens == whole.usage.completion_tokens


def check_completions() -> None:
    asked = fields(max_tokens=12, prompt="The list is")
    del asked["messages"]
    whole = litellm.text_completion(**asked)
    assert whole.usage.completion_tokens == 12
    parts = litellm.text_completion(**asked, stream=True)
    assert "".join(part.choices[0].text or "" for part in parts) == whole.choices[0].text


def check_structured_output() -> None:
    for provider in ("openai", "hosted_vllm"):
        asked = fields(provider, max_tokens=100, temperature=1.5, seed=3, response_format=Weather)
        Weather.model_validate_json(litellm.completion(**asked).choices[0].message.content)


def check_tools() -> None:
    function = {
        "name": "Weather",
        "parameters": Weather.model_json_schema() | {"additionalProperties": False},
    }
    more: dict[str, Any] = {
        "tools": [{"type": "function", "function": function}],
        "parallel_tool_calls": False,
    }
    asked = fields(max_tokens=100, temperature=1.5, seed=3, tool_choice="required", **more)
    whole = litellm.completion(**asked).choices[0]
    (call,) = whole.message.tool_calls
    assert whole.finish_reason == "tool_calls"
    Weather.model_validate_json(call.function.arguments)
    chunks = list(litellm.completion(**asked, stream=True))
    (streamed,) = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
    assert streamed.function.arguments == call.function.arguments
    told = [*HELLO, whole.message, {"role": "tool", "tool_call_id": call.id, "content": "It rains."}]
    assert litellm.completion(**fields(max_tokens=4, messages=told, tool_choice="none", **more)).choices


def check_errors() -> None:
    for wrong, kind in (
        ({"model": "openai/gpt-5", "temperature": 1}, litellm.NotFoundError),
        ({"temperature": -1}, litellm.BadRequestError),
        ({"messages": LONG, "extra_body": {"slo": {"ttft_ms": 1}}}, litellm.BadRequestError),
    ):
        try:
            litellm.completion(**fields() | wrong)
        except kind:
            pass
        else:
            raise AssertionError(f"{wrong} was served")


async def check_concurrency() -> None:
    """Many at once, and at the end a stream that is left in the middle."""
    answers = await asyncio.gather(*(litellm.acompletion(**fields()) for _ in range(8)))
    assert {answer.choices[0].message.content for answer in answers} == {EXPECTED}
    stream = await litellm.acompletion(
        **fields(max_tokens=3000, extra_body={"ignore_eos": True}), stream=True
    )
    await anext(aiter(stream))
    await stream.aclose()


if __name__ == "__main__":
    check_each_provider()
    check_completions()
    check_structured_output()
    check_tools()
    check_errors()
    # On one event loop, since the client keeps its connections.
    asyncio.run(check_concurrency())
