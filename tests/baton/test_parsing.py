"""Texts are taken apart as they come: the same deltas, whatever happens to routers meanwhile."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton import (
    Accepted,
    AsyncClient,
    Chat,
    ChatMessage,
    ChoiceDelta,
    ChoiceFinished,
    Client,
    ContentDelta,
    Finished,
    ReasoningDelta,
    Sampling,
    Timeout,
    Tokens,
    Tool,
    ToolCall,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
    message_of,
)
from baton.parsing import EventParser, ParsedEvent
from baton.types.deltas import CutCalls, Delta, said_by_assistant
from baton.v1 import generation_pb2, inference_pb2
from baton.wire.convert import event_from_pb, put_prompt
from tests.baton.scripted_reading import ScriptedReading
from tests.baton.scripted_service import (
    BREAK,
    ScriptedRouter,
    Step,
    accepted,
    ended,
    finished,
    queued,
    tokens,
)

FORMATS: dict[str, Any] = {"tool_format": "hermes", "reasoning_format": "think"}
TOOLS = (Tool("f", parameters='{"type": "object"}'), Tool("g", parameters={}))
CHAT = Chat([ChatMessage("user", "go")], tools=TOOLS)
TEXT = (
    "<think>\nWhy?\n</think>\n\nSo.\n"
    '<tool_call>\n{"name": "f", "arguments": {"a": [1, "}"]}}\n</tool_call>\n'
    '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
)
QUICK = Timeout(connect_s=0.3)


def said(events: list[ParsedEvent], choice: int = 0) -> ChatMessage:
    return said_by_assistant(
        event.delta for event in events if isinstance(event, ChoiceDelta) and event.choice == choice
    )


def check(message: ChatMessage) -> None:
    assert (message.role, message.content, message.reasoning) == ("assistant", "So.", "Why?")
    assert [(call.name, call.arguments) for call in message.tool_calls] == [
        ("f", '{"a": [1, "}"]}'),
        ("g", "{}"),
    ]
    assert len({call.id for call in message.tool_calls} - {""}) == 2


@given(st.lists(st.integers(0, len(TEXT)), max_size=8))
def test_cuts_change_nothing(cuts: list[int]) -> None:
    """The deltas of a text in any pieces add up to the same message."""
    places = [0, *sorted(cuts), len(TEXT)]
    reading, request = ScriptedReading(), inference_pb2.GenerateRequest()
    put_prompt(request, CHAT)
    pieces = [
        tokens(index, index, text=TEXT[start:end]) for index, (start, end) in enumerate(pairwise(places))
    ]
    ending = ended(len(places) - 1, reason=generation_pb2.FINISH_REASON_EOS)
    parser, events, reader = EventParser(), list[ParsedEvent](), None
    for step in (accepted(**FORMATS), *pieces, ending):
        event, reader = reading.read(request, step, reader)
        events += parser.feed(event_from_pb(event))
    check(said(events))
    assert isinstance(events[0], Accepted)
    assert isinstance(events[-1], ChoiceFinished)
    assert not any(isinstance(event, Tokens) for event in events)


def script(half: int) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    first = (accepted(**FORMATS), queued(), tokens(0, 1, text=TEXT[:half]))
    rest = (accepted(**FORMATS), tokens(1, 2, text=TEXT[half:]), ended(2), finished())
    return first, rest


@pytest.mark.parametrize("half", [3, 25, 40, 60])
async def test_a_stream_that_is_resumed_is_taken_apart_from_its_beginning(half: int) -> None:
    first, rest = script(half)
    async with ScriptedRouter((*first, BREAK), rest) as router, AsyncClient(router.address) as client:
        stream = client.generate(CHAT, timeout=QUICK)
        events = [event async for event in stream.parsed()]
    assert stream.resumes == 1
    check(said(events))
    assert [type(event) for event in events if not isinstance(event, ChoiceDelta)][-2:] == [
        ChoiceFinished,
        Finished,
    ]


async def test_choices_are_taken_apart_each_by_itself() -> None:
    steps = (
        accepted(tool_format="hermes", reasoning_format="think", reasoning_open=True),
        tokens(0, 1, text="a</th"),
        tokens(0, 1, choice=1, text="b"),
        tokens(1, 1, text="ink>c"),
        ended(2),
        ended(1, choice=1),
        finished(),
    )
    async with ScriptedRouter(steps) as router, AsyncClient(router.address) as client:
        events = [event async for event in client.generate(CHAT, sampling=Sampling(n=2)).parsed()]
    assert said(events, 0) == ChatMessage("assistant", "c", (), reasoning="a")
    assert said(events, 1) == ChatMessage("assistant", "", (), reasoning="b")


async def test_a_text_without_formats_is_content() -> None:
    steps = (accepted(), tokens(0, 1, text=TEXT), ended(1), finished())
    async with ScriptedRouter(steps) as router, AsyncClient(router.address) as client:
        completion = await client.complete(CHAT)
    assert message_of(completion) == ChatMessage("assistant", TEXT, ())


async def test_a_completion_becomes_the_message_of_the_next_request() -> None:
    steps = (accepted(**FORMATS), tokens(0, 1, text=TEXT), ended(1), finished())
    async with ScriptedRouter(steps) as router, AsyncClient(router.address) as client:
        completion = await client.complete(CHAT)
    check(message_of(completion))


async def test_the_blocking_client_takes_apart_too() -> None:
    first, rest = script(40)
    async with ScriptedRouter((*first, BREAK), rest) as router:

        def run() -> list[ParsedEvent]:
            with Client(router.address, timeout=QUICK) as client:
                return list(client.generate(CHAT).parsed())

        check(said(await asyncio.to_thread(run)))


def test_deltas_add_up_to_a_message() -> None:
    deltas: list[Delta] = [
        ReasoningDelta("a"),
        ContentDelta("b"),
        ToolCallBegun(0, "f", "x"),
        ToolCallArguments(0, "{"),
        ToolCallArguments(0, "}"),
        ToolCallEnded(0),
        ContentDelta("c"),
    ]
    assert said_by_assistant(deltas) == ChatMessage(
        "assistant", "bc", (ToolCall("x", "f", "{}"),), reasoning="a"
    )


async def test_a_call_without_an_end_was_cut_off() -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call><tool_call>{"name": "g", "arguments": {"a'
    for cut, is_cut in ((len(text), True), (text.index("<tool_call>", 1), False)):
        steps = (accepted(**FORMATS), tokens(0, 1, text=text[:cut]), ended(1), finished())
        async with ScriptedRouter(steps) as router, AsyncClient(router.address) as client:
            [choice] = (await client.complete(CHAT)).choices
        assert bool(CutCalls(choice.deltas)) is is_cut
        assert [delta.index for delta in choice.deltas if isinstance(delta, ToolCallEnded)] == [0]


async def test_a_stream_that_was_read_does_not_go_on_at_an_older_router() -> None:
    """Its deltas would be missing, so it waits for a router that reads."""

    def step(event: inference_pb2.GenerationEvent, *deltas: inference_pb2.Delta) -> Step:
        event.tokens.deltas.extend(deltas)
        return event

    reads = accepted(**FORMATS, has_deltas=True)
    first = step(tokens(0, 1, text="a"), inference_pb2.Delta(content="a"))
    rest = step(tokens(1, 2, text="b"), inference_pb2.Delta(content="b"))
    older = (accepted(**FORMATS), tokens(1, 2, text="b"), ended(2), finished())
    scripts = (reads, first, BREAK), older, (reads, rest, ended(2), finished())
    async with ScriptedRouter(*scripts) as router, AsyncClient(router.address) as client:
        router.reads = False
        stream = client.generate(CHAT)
        assert said([event async for event in stream.parsed()]).content == "ab"
    assert [resume.session for resume in router.calls("Resume")] == [1, 2]
