"""LlamaIndex's class for servers of OpenAI's API, unchanged."""

from __future__ import annotations

import asyncio
import os

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

URL = os.environ["BATON_URL"] + "/v1"
EXPECTED = os.environ["BATON_EXPECTED"]
"""The greedy answer to `HELLO` as the fleet gives it over gRPC."""
HELLO = [ChatMessage(role="user", content="How do I read a file?")]


def model(*, is_chat_model: bool) -> OpenAILike:
    return OpenAILike(
        model="demo_model",
        api_base=URL,
        api_key="none",
        is_chat_model=is_chat_model,
        context_window=4096,
        temperature=0,
        max_tokens=24,
        max_retries=0,
    )


def check_chats() -> None:
    llm = model(is_chat_model=True)
    assert llm.chat(HELLO).message.content == EXPECTED
    assert "".join(part.delta or "" for part in llm.stream_chat(HELLO)) == EXPECTED


def check_completions() -> None:
    llm = model(is_chat_model=False)
    text = llm.complete("The list is").text
    assert text
    assert "".join(part.delta or "" for part in llm.stream_complete("The list is")) == text


async def check_concurrency() -> None:
    llm = model(is_chat_model=True)
    answers = await asyncio.gather(*(llm.achat(HELLO) for _ in range(8)))
    assert {answer.message.content for answer in answers} == {EXPECTED}


if __name__ == "__main__":
    check_chats()
    check_completions()
    asyncio.run(check_concurrency())
