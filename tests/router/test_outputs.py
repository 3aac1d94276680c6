"""Deltas are a function of the tokens: a call that resumes anywhere gets exactly those that it lacks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.v1 import inference_pb2
from model_output.formats import (
    ChatFormats,
    ContentDelta,
    Delta,
    Message,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
)
from model_output.text.output import OutputRules, OutputStream
from model_output.text.stop import StopString
from router.api.convert import put_deltas
from router.outputs import OutputReader, Reading, tool_to_read
from scheduling.request import FinishReason, Matched
from tests.model_output.formats.drawing import CUTS, FORMATS, broken_outputs, cut, outputs
from tests.model_output.formats.writing import NOTATIONS, format_name
from tests.model_output.text.test_reasoning import Pieces
from tests.vectors.outputs.reading import tools

TOOLS = tuple(tool_to_read(tool["name"], json.dumps(tool.get("parameters", {}))) for tool in tools())
ANY = st.one_of(broken_outputs(), st.sampled_from(NOTATIONS).flatmap(outputs).map(lambda drawn: drawn[1]))

STOPS = st.lists(st.sampled_from(["a", "\n\n", "}"]), max_size=2)


def merged(deltas: Iterable[Delta]) -> list[Delta]:
    """Return deltas with pieces of the same text joined."""
    found: list[Delta] = []
    for delta in deltas:
        last = found[-1] if found else None
        if isinstance(delta, ContentDelta | ReasoningDelta | ToolCallArguments) and type(last) is type(delta):
            assert isinstance(last, ContentDelta | ReasoningDelta | ToolCallArguments)
            found[-1] = replace(last, text=last.text + delta.text)
        else:
            found.append(delta)
    return found


def written(pieces: Sequence[str], stops: Sequence[str]) -> tuple[list[str], FinishReason, Matched | None]:
    """Return the texts of tokens, of which each is a piece, as a worker finds them, and their end."""
    rules = OutputRules(len(pieces), 0, frozenset(), frozenset(), tuple(StopString(stop) for stop in stops))
    stream, texts = OutputStream(rules, Pieces(list(pieces))), list[str]()
    for place in range(len(pieces)):
        text, reason = stream.push(place)
        texts.append(text)
        if reason is not FinishReason.NONE:
            match = None if stream.stop_place is None else Matched(stop_string=stops[stream.stop_place])
            return texts, reason, match
    return texts, FinishReason.EOS, None


@given(FORMATS, ANY, CUTS, st.booleans(), st.booleans(), STOPS, st.integers(0, 10_000))
def test_a_resumed_call_gets_exactly_the_missing_deltas(
    formats: ChatFormats,
    text: str,
    places: list[int],
    is_open: bool,
    has_format: bool,
    stops: list[str],
    place: int,
) -> None:
    texts, reason, match = written(cut(text, places), stops)
    reading = Reading(formats, is_open, TOOLS, has_format)
    reader = OutputReader(reading, "r")
    by_token = [reader.read(0, piece) for piece in texts]
    rest = reader.end(0, reason, match)
    count = place % (len(texts) + 1)
    again = OutputReader(replace(reading, received={0: "".join(texts[:count])}), "r")
    lacked = [delta for piece in texts[count:] for delta in again.read(0, piece)]
    expected = [delta for deltas in by_token[count:] for delta in deltas]
    assert merged([*lacked, *again.end(0, reason, match)]) == merged([*expected, *rest])
    assert again.has_cut_call(0) is reader.has_cut_call(0)


@given(FORMATS, ANY, CUTS, CUTS, st.booleans(), st.booleans())
def test_what_tokens_say_does_not_depend_on_how_they_come(
    formats: ChatFormats, text: str, places: list[int], others: list[int], is_open: bool, has_format: bool
) -> None:
    """A slow reader gets the tokens of several events in one."""
    reading = Reading(formats, is_open, TOOLS, has_format)

    def said(pieces: Sequence[str]) -> list[Delta]:
        reader = OutputReader(reading, "r")
        deltas = [delta for piece in pieces for delta in reader.read(0, piece)]
        return merged([*deltas, *reader.end(0, FinishReason.EOS, None)])

    assert said(cut(text, places)) == said(cut(text, others)) == said([text])


@pytest.mark.parametrize("notation", NOTATIONS)
@given(data=st.data())
def test_a_call_has_an_end_if_it_is_whole(notation: str, data: st.DataObject) -> None:
    _, text = data.draw(outputs(notation))
    place = data.draw(st.integers(0, len(text)))
    reader = OutputReader(Reading(ChatFormats(format_name(notation)), tools=TOOLS), "r")
    deltas = [*reader.read(0, text[:place]), *reader.end(0, FinishReason.LENGTH, None)]
    ended = {delta.index for delta in deltas if isinstance(delta, ToolCallEnded)}
    for index, call in enumerate(Message.of(deltas).calls):
        try:
            is_whole = isinstance(json.loads(call.arguments), dict)
        except ValueError:
            is_whole = False
        assert is_whole is (index in ended)
    assert reader.has_cut_call(0) is (len(ended) < len(Message.of(deltas).calls))


TEXT = '<think>Hm</think>So <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
HERMES = Reading(ChatFormats("hermes", "think"), tools=TOOLS)


def test_ids_are_those_of_the_request_and_the_choice_in_every_session() -> None:
    def ids(request_id: str, choice: int, received: str = "") -> list[str]:
        reader = OutputReader(replace(HERMES, received={choice: received}), request_id)
        deltas = reader.read(choice, TEXT.removeprefix(received))
        return [delta.id for delta in deltas if isinstance(delta, ToolCallBegun)]

    assert ids("r", 0) == ids("r", 0, TEXT[:40])
    assert len({*ids("r", 0), *ids("r", 1), *ids("s", 0)}) == 3


@pytest.mark.parametrize(
    ("reason", "matched", "rest"),
    [
        (FinishReason.EOS, None, "a <tool"),
        (FinishReason.STOP, Matched(stop_token_id=7), "a <tool"),
        (FinishReason.STOP, Matched(stop_string="_call"), "a"),
        (FinishReason.STOP, Matched(stop_string="x"), "a <tool"),
        (FinishReason.LENGTH, None, "a"),
        (FinishReason.CANCELLED, None, "a"),
    ],
)
def test_half_a_marker_is_content_if_the_model_ended_there(
    reason: FinishReason, matched: Matched | None, rest: str
) -> None:
    reader = OutputReader(HERMES, "r")
    assert Message.of([*reader.read(0, "a <tool"), *reader.end(0, reason, matched)]).content == rest


def test_every_delta_has_a_message() -> None:
    reader = OutputReader(HERMES, "r")
    deltas = inference_pb2.Tokens().deltas
    put_deltas(deltas, [*reader.read(0, TEXT), *reader.end(0, FinishReason.EOS, None)])
    kinds = [delta.WhichOneof("delta") for delta in deltas]
    assert kinds == ["reasoning", "content", "call_begun", "call_arguments", "call_ended"]
    assert set(kinds) == set(inference_pb2.Delta.DESCRIPTOR.fields_by_name)
    thought, content, begun, arguments, ended = deltas
    assert (thought.reasoning, content.content) == ("Hm", "So")
    assert (begun.call_begun.name, arguments.call_arguments.text) == ("f", '{"a": 1}')
    assert begun.call_begun.id.startswith("call_")
    assert ended.call_ended.index == begun.call_begun.index == arguments.call_arguments.index == 0


def test_a_schema_is_parsed_when_a_value_needs_its_type() -> None:
    text = "<function=f><parameter=a>\n1\n</parameter></function>"

    def arguments(parameters: str) -> str:
        reading = Reading(ChatFormats("qwen3_coder"), tools=(tool_to_read("f", parameters),))
        reader = OutputReader(reading, "r")
        return Message.of([*reader.read(0, text), *reader.end(0, FinishReason.EOS, None)]).calls[0].arguments

    assert arguments('{"properties": {"a": {"type": "string"}}}') == '{"a": "1"}'
    assert arguments('{"properties": {"a": {"type": "integer"}}}') == arguments("") == '{"a": 1}'
    too_deep = '{"properties": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}"
    assert arguments(too_deep) == '{"a": 1}'


def test_texts_without_formats_are_nothing_but_content() -> None:
    assert not OutputReader(Reading(), "r").has_deltas
    for formats in (ChatFormats("hermes"), ChatFormats("", "think")):
        assert OutputReader(Reading(formats), "r").has_deltas
