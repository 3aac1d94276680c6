"""The grammar of events: any run of deltas gives a well-formed sequence, which adds up to the response."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from baton.types import Accepted, ChoiceFinished, FinishReason, Promise, Tokens
from baton.types.deltas import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
)
from gateway.responses.draft import Draft, replayed
from gateway.serving.errors import Problem
from tests.gateway.responses.summing import summed

texts = st.text(min_size=1, max_size=5)


@st.composite
def runs(draw: st.DrawFn) -> list[Delta]:
    deltas: list[Delta] = []
    for kind in draw(st.lists(st.sampled_from("crttaae"), max_size=12)):
        calls = sum(isinstance(delta, ToolCallBegun) for delta in deltas)
        match kind:
            case "c":
                deltas.append(ContentDelta(draw(texts)))
            case "r":
                deltas.append(ReasoningDelta(draw(texts)))
            case "t":
                deltas.append(ToolCallBegun(calls, draw(texts), f"call_{calls}"))
            case "a" if deltas and isinstance(deltas[-1], ToolCallBegun | ToolCallArguments):
                deltas.append(ToolCallArguments(calls - 1, draw(texts)))
            case "e" if deltas and isinstance(deltas[-1], ToolCallBegun | ToolCallArguments):
                deltas.append(ToolCallEnded(calls - 1))
    return deltas


def new_draft() -> Draft:
    promise = Promise(1.0, 1.0, None, None, at_risk=False)
    accepted = Accepted("1", promise, 7, 3, reasoning_format="think", has_deltas=True)
    return Draft({"id": "resp_1", "object": "response", "error": None}, accepted)


@given(runs(), st.integers(0, 3), st.sampled_from(FinishReason))
def test_any_output_is_told_in_order_and_adds_up(
    deltas: list[Delta], at_the_end: int, reason: FinishReason
) -> None:
    at_the_end = min(at_the_end, len(deltas))
    draft = new_draft()
    events = draft.opening()
    num_before = len(deltas) - at_the_end
    for index, delta in enumerate(deltas[:num_before]):
        events += draft.of(Tokens(0, index, (1,), "x", deltas=(delta,)))
    end = ChoiceFinished(0, reason, len(deltas), deltas=tuple(deltas[num_before:]))
    events += draft.of(end)
    events += draft.end(end, "it failed")
    events.append(draft.closing())
    assert summed(events) == draft.response["output"]
    assert events[-1]["response"] == draft.response
    written = "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))
    assert "".join(texts_of(draft.response, "message")) == written
    thought = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
    assert "".join(texts_of(draft.response, "reasoning")) == thought
    if draft.problem is None:
        assert draft.response["output"], "clients look for a message"


@given(runs())
def test_a_response_is_told_again_as_it_was(deltas: list[Delta]) -> None:
    draft = new_draft()
    draft.opening()
    draft.end(ChoiceFinished(0, FinishReason.EOS, 0, deltas=tuple(deltas)), "")
    events = replayed(draft.response)
    assert summed(events) == draft.response["output"]
    assert events[-1]["response"] == draft.response


@given(runs())
def test_what_breaks_off_is_ended(deltas: list[Delta]) -> None:
    draft = new_draft()
    events = draft.opening()
    for delta in deltas:
        events += draft.of(Tokens(0, 0, (1,), "x", deltas=(delta,)))
    events += draft.fail(Problem(503, "overloaded_error", "gone"))
    events.append(draft.closing())
    assert summed(events) == draft.response["output"]
    assert events[-1]["type"] == "response.failed"


def texts_of(response: dict[str, Any], kind: str) -> list[str]:
    return [item["content"][0]["text"] for item in response["output"] if item["type"] == kind]
