"""The log-probabilities of a stream's chunks, put together, are those of the whole response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import hypothesis.strategies as st
from hypothesis import given

from baton.stream import GenerationStream
from baton.types import (
    Accepted,
    Choice,
    ChoiceFinished,
    Completion,
    Delivery,
    Event,
    Finished,
    FinishReason,
    Promise,
    PromptLogprobs,
    TimeSplit,
    TokenLogprobs,
    Tokens,
    Usage,
)
from gateway.openai.responses import Echo, Writer
from gateway.openai.schema import CompletionBody, StreamOptions
from gateway.openai.shapes import TextShape
from gateway.serving.direct import Line
from gateway.serving.generations import Running

VOCABULARY = (b"a", b" long", b"\xc3", "ü".encode(), b"", b"\n")
PROMPT = (1, 3, 0)
PROMISE = Promise(0.0, 0.0, None, None, False)
OUTPUTS = st.lists(st.lists(st.integers(0, len(VOCABULARY) - 1), min_size=1, max_size=3), min_size=1)
"""The events of a choice, each with some tokens."""
REASONS = (FinishReason.EOS, FinishReason.STOP, FinishReason.LENGTH)


def drawn(token_id: int) -> TokenLogprobs:
    return TokenLogprobs(-1.0 - token_id, ((0, -0.5),))


def text_of(token_ids: Sequence[int]) -> str:
    return b"".join(VOCABULARY[token_id] for token_id in token_ids).decode(errors="ignore")


async def chunks_of(writer: Writer, events: list[Event], echoes: list[Echo]) -> list[dict[str, Any]]:
    async def told() -> AsyncGenerator[Event, None]:
        for event in events:
            yield event

    stream = cast("GenerationStream", SimpleNamespace(resumes=0, relay_to=lambda _: None))
    running = Running(Accepted("r", PROMISE, 1, len(PROMPT)), stream, told())
    lines = [line async for line in writer.chunks([running], echoes, cast("Line", None))]
    assert lines.pop() == b"data: [DONE]\n\n"
    return [json.loads(line.removeprefix(b"data: ")) for line in lines]


@given(
    outputs=st.lists(OUTPUTS, min_size=1, max_size=3),
    echo=st.sampled_from(["no echo", "echo", "echo alone"]),
    reason=st.sampled_from(REASONS),
    data=st.data(),
)
def test_a_stream_has_the_logprobs_and_usage_of_the_whole_response(
    outputs: list[list[list[int]]], echo: str, reason: FinishReason, data: st.DataObject
) -> None:
    """Events of several choices come in any order."""
    tokens = [tuple(token_id for event in output for token_id in event) for output in outputs]
    prompt_logprobs = tuple(drawn(token_id) for token_id in PROMPT[1:])
    usage = Usage(len(PROMPT), 0, sum(map(len, tokens)), 1)
    finished = Finished(usage, PROMISE, Delivery(1, 1, 1, 1, True, True), TimeSplit(0, 0, 0, 0, 0))
    options = StreamOptions(include_usage=True)
    body = CompletionBody(
        prompt=list(PROMPT), n=len(outputs), stream=True, logprobs=1, stream_options=options
    )
    writer = Writer(body, TextShape(), "m", 0, VOCABULARY, True, ())
    echoes = [] if echo == "no echo" else [Echo(text_of(PROMPT), PROMPT, echo == "echo alone")]

    waiting, told = [list(output) for output in outputs], [0] * len(outputs)
    events: list[Event] = [PromptLogprobs(1, prompt_logprobs)]
    while any(waiting):
        choice = data.draw(st.sampled_from([index for index, left in enumerate(waiting) if left]))
        token_ids = tuple(waiting[choice].pop(0))
        events.append(
            Tokens(choice, told[choice], token_ids, text_of(token_ids), tuple(map(drawn, token_ids)))
        )
        told[choice] += len(token_ids)
    events += [ChoiceFinished(index, reason, len(ids)) for index, ids in enumerate(tokens)]
    streamed = asyncio.run(chunks_of(writer, [*events, finished], echoes))

    choices = tuple(
        Choice(index, text_of(ids), ids, reason, tuple(map(drawn, ids))) for index, ids in enumerate(tokens)
    )
    whole = writer.whole([Completion("r", 1, choices, finished, prompt_logprobs=prompt_logprobs)], echoes)
    for choice in whole["choices"]:
        parts = [part for chunk in streamed for part in chunk["choices"] if part["index"] == choice["index"]]
        for column, expected in choice["logprobs"].items():
            assert [cell for part in parts for cell in (part["logprobs"] or {}).get(column, ())] == expected
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
    assert streamed[-1]["usage"] == whole["usage"]
    if echo == "echo alone":
        assert whole["usage"]["completion_tokens"] == 0
        assert {choice["finish_reason"] for choice in whole["choices"]} == {"length"}
