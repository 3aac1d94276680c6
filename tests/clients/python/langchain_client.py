"""LangChain's classes for OpenAI, unchanged."""

from __future__ import annotations

import asyncio
import functools
import operator
import os
from collections.abc import Iterable, Mapping

import openai
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field

URL = os.environ["BATON_URL"] + "/v1"
EXPECTED = os.environ["BATON_EXPECTED"]
"""The greedy answer to `HELLO` as the fleet gives it over gRPC."""
HELLO = "How do I read a file?"
# No processor computes it within a millisecond, as it may the new tokens of a prompt that was sent before.
LONG = "word " * 800


class Weather(BaseModel):
    """The weather of a place."""

    place: str = Field(max_length=8)
    degrees: int = Field(ge=-50, le=50)
    is_dry: bool


def chat(**more: object) -> ChatOpenAI:
    fields = {"model": "demo_model", "temperature": 0, "max_tokens": 24, "max_retries": 0} | more
    return ChatOpenAI(base_url=URL, api_key="none", **fields)


def check_messages() -> None:
    whole = chat().invoke(HELLO)
    assert whole.content == EXPECTED, whole.content
    assert whole.response_metadata["finish_reason"] == "stop"
    assert chat(max_tokens=3).invoke(HELLO).usage_metadata["output_tokens"] == 3
    history = [SystemMessage("Be brief."), HumanMessage(HELLO), AIMessage("With open."), HumanMessage("Why?")]
    assert chat().invoke(history).usage_metadata["input_tokens"] > whole.usage_metadata["input_tokens"]


def check_streams() -> None:
    chunks = list(chat(stream_usage=True).stream(HELLO))
    assert "".join(chunk.content for chunk in chunks) == EXPECTED
    assert len(chunks) > 5
    assert sum(chunk.usage_metadata is not None for chunk in chunks) == 1


def check_completions() -> None:
    llm = OpenAI(base_url=URL, api_key="none", model="demo_model", temperature=0, max_tokens=12)
    text = llm.invoke("The list is")
    assert text
    assert "".join(llm.stream("The list is")) == text
    assert llm.batch(["The list is", "import "])[0] == text


def check_logprobs() -> None:
    found = chat(logprobs=True, top_logprobs=3).invoke(HELLO).response_metadata["logprobs"]["content"]
    assert "".join(token["token"] for token in found).startswith(EXPECTED)
    assert all(token["logprob"] == token["top_logprobs"][0]["logprob"] for token in found)


def check_structured_output() -> None:
    llm = chat(max_tokens=100, temperature=1.5, seed=3)
    weather = llm.with_structured_output(Weather, method="json_schema").invoke("The weather?")
    assert isinstance(weather, Weather), weather
    parts = list(llm.with_structured_output(Weather.model_json_schema(), method="json_schema").stream("So?"))
    Weather.model_validate(parts[-1])


def check_tools() -> None:
    llm = chat(max_tokens=100, temperature=1.5, seed=3)
    bound = llm.bind_tools([Weather], tool_choice="Weather", parallel_tool_calls=False)
    answer = bound.invoke("The weather?")
    (call,) = answer.tool_calls
    Weather.model_validate(call["args"])
    streamed = sum_of(bound.stream("The weather?"))
    assert [streamed.tool_calls[0][name] for name in ("name", "args")] == [call["name"], call["args"]]
    told = [HumanMessage("The weather?"), answer, ToolMessage("It rains.", tool_call_id=call["id"])]
    assert not chat(max_tokens=4).bind_tools([Weather], tool_choice="none").invoke(told).tool_calls
    called = llm.with_structured_output(Weather, method="function_calling").invoke("The weather?")
    assert isinstance(called, Weather), called


def sum_of(chunks: Iterable[AIMessageChunk]) -> AIMessageChunk:
    return functools.reduce(operator.add, chunks)


def check_errors() -> None:
    for prompt, wrong, kind, param in (
        (HELLO, {"model": "gpt-5"}, openai.NotFoundError, "model"),
        (HELLO, {"temperature": -1}, openai.BadRequestError, "temperature"),
        (LONG, {"extra_body": {"slo": {"ttft_ms": 1}}}, openai.BadRequestError, "slo.ttft_ms"),
    ):
        error = error_of(prompt, wrong)
        assert isinstance(error, kind), error
        assert error.param == param, error


def error_of(prompt: str, wrong: Mapping[str, object]) -> openai.APIStatusError:
    try:
        chat(**wrong).invoke(prompt)
    except openai.APIStatusError as error:
        return error
    raise AssertionError(f"{wrong} was served")


async def check_concurrency() -> None:
    """Many at once, and at the end a stream that is left in the middle."""
    answers = await asyncio.gather(*(chat().ainvoke(HELLO) for _ in range(8)))
    assert {answer.content for answer in answers} == {EXPECTED}
    long = chat(max_tokens=3000, extra_body={"ignore_eos": True})
    async for chunk in long.astream(HELLO):
        if chunk.content:
            break


if __name__ == "__main__":
    check_messages()
    check_streams()
    check_completions()
    check_logprobs()
    check_structured_output()
    check_tools()
    check_errors()
    # On one event loop, since the client keeps its connections.
    asyncio.run(check_concurrency())
