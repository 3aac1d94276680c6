"""Tokens that are written directly, and those that are events, make the same stream in all APIs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.stream import GenerationStream, Relay
from baton.types import (
    Accepted,
    ChoiceFinished,
    Delivery,
    Event,
    Finished,
    FinishReason,
    Promise,
    Queued,
    Sampling,
    Slo,
    Stop,
    TimeSplit,
    Tokens,
    Usage,
)
from baton.types.deltas import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
)
from gateway.anthropic.responses import message_events
from gateway.openai.responses import Writer
from gateway.openai.schema import ChatBody, CompletionBody, Message
from gateway.openai.shapes import ChatShape, TextShape
from gateway.responses import create
from gateway.responses.keeping import Keeping
from gateway.responses.store import Record
from gateway.serving.direct import Line
from gateway.serving.fleet import CallerCredentials, FleetClient
from gateway.serving.generations import Generation, Running
from tests.baton.scripted_service import ScriptedRouter, Wait, accepted, ended, finished, tokens

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
DELTAS = st.one_of(
    st.builds(ContentDelta, TEXTS),
    st.builds(ReasoningDelta, TEXTS),
    st.just("call"),
    st.builds(lambda text: ToolCallArguments(0, text), TEXTS),
    st.just("call ended"),
)
PROMISE = Promise(0.0, 0.0, None, None, False)
GENERATION = Generation("hello", Sampling(), Stop(), Slo())


@dataclass
class Written:
    """A caller's connection, which is free or not as it likes."""

    free: Sequence[bool]
    written: list[bytes] = field(default_factory=list)
    num_direct: int = 0
    _asked: int = 0

    @property
    def is_free(self) -> bool:
        self._asked += 1
        return self.free[self._asked % len(self.free)]

    def write_now(self, event: bytes) -> None:
        self.num_direct += 1
        self.written.append(event)


Api = Callable[[Running, Line], AsyncGenerator[bytes, None]]


def chat(running: Running, line: Line) -> AsyncGenerator[bytes, None]:
    body = ChatBody(messages=[Message(role="user", content="hello")], stream=True)
    return Writer(body, ChatShape(GENERATION), "m", 1, (), False, ()).chunks([running], (), line)


def completion(running: Running, line: Line) -> AsyncGenerator[bytes, None]:
    body = CompletionBody(prompt="hello", stream=True)
    return Writer(body, TextShape(), "m", 1, (), False, ()).chunks([running], (), line)


def message(running: Running, line: Line) -> AsyncGenerator[bytes, None]:
    return message_events(running, "m", line)


def response(running: Running, line: Line) -> AsyncGenerator[bytes, None]:
    head: dict[str, Any] = {"id": "resp_r", "object": "response", "model": "m", "output": [], "usage": None}
    keeping = Keeping(None, "", Record(head, [], [], "r", ""), is_demanded=False)
    return create.stream(create.Asked(GENERATION, keeping, None), running, line)


APIS = pytest.mark.parametrize("api", [chat, completion, message, response])


def say(drawn: Sequence[Any]) -> list[tuple[Delta, ...]]:
    """Return deltas of tokens as a router sends them: arguments belong to a call that is open."""
    said: list[tuple[Delta, ...]] = []
    num_calls, is_open = 0, False
    for delta in drawn:
        if delta == "call":
            said.append((ToolCallBegun(num_calls, "f", f"call_{num_calls}"),))
            num_calls, is_open = num_calls + 1, True
        elif delta == "call ended":
            if is_open:
                said.append((ToolCallEnded(num_calls - 1),))
            is_open = False
        elif isinstance(delta, ToolCallArguments):
            if is_open:
                said.append((ToolCallArguments(num_calls - 1, delta.text),))
        elif not is_open:
            said.append((delta,))
    return said


async def stream_of(
    api: Api, said: Sequence[tuple[Delta, ...]], line: Written, *, has_deltas: bool, directly: bool
) -> list[Any]:
    """Return the events that a caller receives."""
    relays: list[Relay] = []

    async def told() -> AsyncGenerator[Event, None]:
        yield Queued(1, 2, 3.0)
        for index, deltas in enumerate(said):
            text = "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))
            if directly and relays and relays[0](text, deltas if has_deltas else (), 1):
                continue
            yield Tokens(0, index, (7,), text, (), deltas if has_deltas else ())
        yield ChoiceFinished(0, FinishReason.EOS, len(said))
        usage = Usage(1, 0, len(said), 1)
        yield Finished(usage, PROMISE, Delivery(1, 1, 1, 1, True, True), TimeSplit(0, 0, 0, 0, 0))

    stream = cast("GenerationStream", SimpleNamespace(resumes=0, relay_to=relays.append))
    running = Running(Accepted("r", PROMISE, 1, 1, has_deltas=has_deltas), stream, told())
    async with aclosing(api(running, line)) as events:
        async for event in events:
            line.written.append(event)
    return [*map(parsed, b"".join(line.written).decode().split("\n\n"))]


def parsed(event: str) -> Any:
    """Return an event without the time of day."""
    name, _, data = event.rpartition("data: ")
    if not data.startswith("{"):
        return event
    found = json.loads(data)
    for timed in (found, found.get("response", {})):
        timed.pop("created", None)
        timed.pop("completed_at", None)
    return name, found


@APIS
@given(
    drawn=st.lists(DELTAS, max_size=12),
    free=st.lists(st.booleans(), min_size=1, max_size=5),
    has_deltas=st.booleans(),
)
def test_what_is_written_directly_is_what_its_event_would_be(
    api: Api, drawn: list[Any], free: list[bool], *, has_deltas: bool
) -> None:
    said = say(drawn)
    as_events = asyncio.run(stream_of(api, said, Written([False]), has_deltas=has_deltas, directly=False))
    line = Written(free)
    assert asyncio.run(stream_of(api, said, line, has_deltas=has_deltas, directly=True)) == as_events


@APIS
def test_text_is_written_directly(api: Api) -> None:
    said = [(ContentDelta(text),) for text in ("one", "two", "three")]
    line = Written([True])
    asyncio.run(stream_of(api, said, line, has_deltas=False, directly=True))
    # The first text of a message or item opens it.
    assert line.num_direct >= 2


def test_calls_and_reasoning_are_written_directly_between_their_ends() -> None:
    said: list[tuple[Delta, ...]] = [
        (ReasoningDelta("a"),),
        (ReasoningDelta("b"),),
        (ToolCallBegun(0, "f", "id"),),
        (ToolCallArguments(0, "{"),),
        (ToolCallArguments(0, "}"),),
        (ToolCallEnded(0),),
    ]
    for api, num_direct in ((chat, 4), (message, 3), (response, 3)):
        line = Written([True])
        asyncio.run(stream_of(api, said, line, has_deltas=True, directly=True))
        assert line.num_direct == num_direct


async def test_rows_of_a_router_are_written_directly() -> None:
    gate, line = asyncio.Event(), Written([True])
    script = (accepted(), Wait(gate), tokens(0, 10), tokens(1, 11, 12), ended(3), finished())
    async with (
        ScriptedRouter(script) as router,
        FleetClient([router.address], CallerCredentials(), 2.0) as fleet,
        aclosing(chat(await Running.begin(fleet, GENERATION), line)) as events,
    ):
        line.written.append(await anext(events))
        following = asyncio.ensure_future(anext(events))
        for _ in range(20):
            await asyncio.sleep(0)
        gate.set()
        line.written.append(await following)
    assert line.num_direct == 2
    assert b"<10>" in line.written[1]
    assert b"<11><12>" in line.written[2]
