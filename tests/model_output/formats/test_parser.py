"""Calls and reasoning come out of every format whole, however the text is cut, and no text is lost."""

from __future__ import annotations

import json
import time
from functools import partial

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from model_output.formats import REASONING_FORMATS, TOOL_FORMATS, ChatFormats, OutputParser, Tool
from model_output.formats.source import Markers
from tests.model_output.formats.drawing import CUTS, FORMATS, broken_outputs, cut, outputs
from tests.model_output.formats.writing import NOTATIONS, TOOLS, Call, format_name, parsed


@pytest.mark.parametrize("notation", NOTATIONS)
@given(data=st.data(), places=CUTS)
def test_calls_come_back_as_written(notation: str, data: st.DataObject, places: list[int]) -> None:
    calls, text = data.draw(outputs(notation))
    found = parsed(ChatFormats(format_name(notation)), cut(text, places))
    assert [(name, json.loads(arguments)) for name, arguments in found.calls] == calls
    assert (found.content, found.reasoning) == ("", "")
    assert len(set(found.ids)) == len(calls)


@given(FORMATS, broken_outputs(), CUTS, st.booleans(), st.booleans())
def test_any_text_says_the_same_however_it_is_cut(
    formats: ChatFormats, text: str, places: list[int], reasoning_open: bool, has_format: bool
) -> None:
    read = partial(parsed, formats, reasoning_open=reasoning_open, has_format=has_format)
    whole = read([text])
    assert read(cut(text, places)) == whole
    assert read(list(text)) == whole
    assert {name for name, _ in whole.calls} <= {tool.name for tool in TOOLS}


@given(st.sampled_from([name for name in TOOL_FORMATS if name != "harmony"]), broken_outputs())
@example("mistral", "[TOOL_CALLS][TOOL_RESULTS]")
def test_a_text_without_calls_is_all_content(name: str, text: str) -> None:
    found = parsed(ChatFormats(name), [text])
    if found.calls:
        return
    text = Markers(TOOL_FORMATS[name].controls).pattern.sub("", text)
    assert "".join(found.content.split()) == "".join(text.split())


@given(
    st.sampled_from(NOTATIONS).flatmap(lambda name: st.tuples(st.just(name), outputs(name))),
    st.data(),
    CUTS,
    st.booleans(),
)
def test_a_cut_off_output_tells_the_beginning_of_the_whole(
    drawn: tuple[str, tuple[list[Call], str]], data: st.DataObject, places: list[int], has_format: bool
) -> None:
    notation, (_, text) = drawn
    read = partial(parsed, ChatFormats(format_name(notation)), has_format=has_format)
    whole = read([text])
    place = data.draw(st.integers(0, len(text)))
    # A stop string may be the next characters, or none is known.
    ahead = text[place : place + data.draw(st.integers(0, 8))]
    found = read(cut(text[:place], places), cut_before=ahead)
    assert (found.content, found.reasoning) == ("", "")
    for (name, arguments), (whole_name, whole_arguments) in zip(found.calls, whole.calls, strict=False):
        assert name == whole_name
        assert whole_arguments.startswith(arguments)
    *_, last = [("", "{}"), *found.calls]
    assert found.has_cut_call is (last not in [("", "{}"), *whole.calls])
    assert not whole.has_cut_call


UNMISTAKABLE = FORMATS.filter(lambda form: not TOOL_FORMATS[form.tools].bare and form.reasoning != "granite")
"""Formats without a marker that may as well begin a sentence or a value."""


@given(
    UNMISTAKABLE,
    broken_outputs(),
    st.data(),
    CUTS,
    st.booleans(),
)
def test_any_cut_off_text_says_the_beginning_of_the_whole(
    formats: ChatFormats, text: str, data: st.DataObject, places: list[int], reasoning_open: bool
) -> None:
    # Words may be those of a header, too.
    assume("harmony" not in {formats.tools, formats.reasoning} or reasoning_open or text.startswith("<|"))
    place = data.draw(st.integers(0, len(text)))
    read = partial(parsed, formats, reasoning_open=reasoning_open)
    whole, found = read([text]), read(cut(text[:place], places), cut_before="")
    assert whole.reasoning.startswith(found.reasoning.rstrip())
    assert whole.content.startswith(found.content.rstrip())
    assert len(found.calls) <= len(whole.calls)
    for (name, arguments), (whole_name, whole_arguments) in zip(found.calls, whole.calls, strict=False):
        assert (name, whole_arguments[: len(arguments)]) == (whole_name, arguments)


@pytest.mark.parametrize("name", sorted(set(REASONING_FORMATS) - {"harmony"}))
@given(
    thought=st.text("ab \n<>[]/", max_size=20),
    content=st.text("ab \n<>[]/", max_size=20),
    places=CUTS,
    is_open=st.booleans(),
)
def test_reasoning_is_split_from_content(
    name: str, thought: str, content: str, places: list[int], is_open: bool
) -> None:
    form = REASONING_FORMATS[name]
    for begin, end in zip(form.opens, form.closes, strict=True):
        text = f"{'' if is_open else begin}\n{thought}\n{end}\n\n{content}"
        found = parsed(ChatFormats("hermes", name), cut(text, places), reasoning_open=is_open)
        assert (found.reasoning, found.content) == (thought.strip(), content.lstrip())


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def test_ids_depend_on_seed_and_place_alone() -> None:
    def ids(seed: str, name: str = "hermes") -> list[str]:
        parser = OutputParser(ChatFormats(name), [Tool("f")], seed=seed)
        text = CALL * 2 if name == "hermes" else "[TOOL_CALLS]f[ARGS]{}"
        return [delta.id for delta in parser.feed(text) if hasattr(delta, "id")]

    assert ids("r") == ids("r")
    assert not set(ids("r")) & set(ids("s"))
    assert [len(found) for found in ids("r", "mistral")] == [9]


@given(st.sampled_from(["hermes", "mistral", "granite", "phi4", "qwen3_coder"]), broken_outputs())
def test_only_what_may_begin_a_marker_waits(name: str, text: str) -> None:
    form = TOOL_FORMATS[name]
    parser, told = OutputParser(ChatFormats(name), TOOLS, seed="s"), ""
    text = "".join(character for character in text if character not in "<[")
    for character in text:
        told += "".join(delta.text for delta in parser.feed(character) if hasattr(delta, "text"))
    assert told == text.rstrip()
    assert not parser.feed(form.opens[0][:-1])


REPEATED = {
    "hermes": ('<tool_call>{"name": "f", "arguments": {"a": "', "x<tool_call", '"}}</tool_call>'),
    "llama3_json": ('{"other": "', "x\\n", '", "name": "f"}'),
    "qwen3_coder": ("<function=get_weather><parameter=days>", "1", "</parameter></function>"),
    "qwen3_coder, a number": ("<function=get_weather><parameter=days>", "1", "x</parameter></function>"),
    "pythonic": ("[f(a='", "x)]", "')]"),
    "mistral": ("", "[TOOL_CALL", ""),
    "granite": ("<|tool_call|>[{", '"name": ', ""),
    "phi4": ("", " \n", ""),
    "harmony": ("<|channel|>analysis<|message|>", "<|", "<|end|>"),
}


@pytest.mark.parametrize("name", sorted(REPEATED))
def test_the_cost_of_a_text_follows_its_length(name: str) -> None:
    """Ten times the text costs about ten times as much; a hundred times if all were read again."""
    begin, middle, end = REPEATED[name]

    def seconds(size: int) -> float:
        began = time.thread_time()
        parsed(ChatFormats(name.partition(",")[0]), [begin, *[middle] * size, end])
        return time.thread_time() - began

    def best(size: int) -> float:
        return min(seconds(size) for _ in range(5))

    assert best(20_000) < 40 * best(2_000)
