"""Calls and reasoning come out of every format whole, however the text is cut, and no text is lost."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chat_formats import REASONING_FORMATS, TOOL_FORMATS, ChatFormats, OutputParser, Tool
from chat_formats.source import Markers
from tests.chat_formats.writing import NOTATIONS, TOOLS, Call, Said, format_name, parsed, written

MARKERS = sorted(
    {
        marker
        for forms in (TOOL_FORMATS, REASONING_FORMATS)
        for form in forms.values()
        for marker in (*form.opens, *form.closes, *form.controls)
    }
    | {
        "<|channel|>",
        "<|message|>",
        "<|end|>",
        "<|start|>",
        "<|call|>",
        "[ARGS]",
        "<function=f>",
        "</function>",
    }
    | {"<parameter=city>", "</parameter>", '{"name": "f", "arguments": ', "[f(", "f(a=1)", "to=functions.f"}
)
HARD = [
    *MARKERS,
    '"',
    "'",
    "\\",
    "\\u00",
    "\\ud83d",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    ",",
    ":",
    ";",
    "=",
    "<",
    "\n",
    " ",
]
TEXTS = st.one_of(
    st.text(max_size=12), st.lists(st.sampled_from([*HARD, "é", "😀", "\x00", "a"]), max_size=6).map("".join)
)
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**20), 10**20),
        st.floats(allow_nan=False, allow_infinity=False),
        TEXTS,
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True)


@st.composite
def outputs(draw: st.DrawFn, notation: str) -> tuple[list[Call], str]:
    """Draw calls and their text. Text in tags cannot contain the tag that ends it."""
    most = 1 if notation == "harmony" else 3
    if notation == "qwen3_coder":
        values = st.fixed_dictionaries(
            {"city": TEXTS.filter(lambda text: "</parameter>" not in f"{text}\n")},
            optional={"days": st.integers(), "where": st.dictionaries(NAMES, st.integers(), max_size=2)},
        )
        calls = draw(st.lists(st.tuples(st.just("get_weather"), values), min_size=1, max_size=most))
    else:
        values = st.dictionaries(NAMES if notation == "pythonic" else TEXTS, VALUES, max_size=3)
        calls = draw(
            st.lists(st.tuples(st.sampled_from(["f", "look-up"]), values), min_size=1, max_size=most)
        )
    return calls, written(notation, calls)


def cut(text: str, places: Sequence[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places} | {len(text)})
    return [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


CUTS = st.lists(st.integers(0, 10_000), max_size=30)


@pytest.mark.parametrize("notation", NOTATIONS)
@given(data=st.data(), places=CUTS)
def test_calls_come_back_as_written(notation: str, data: st.DataObject, places: list[int]) -> None:
    calls, text = data.draw(outputs(notation))
    found = parsed(ChatFormats(format_name(notation)), cut(text, places))
    assert [(name, json.loads(arguments)) for name, arguments in found.calls] == calls
    assert (found.content, found.reasoning) == ("", "")
    assert len(set(found.ids)) == len(calls)


FORMATS = st.tuples(
    st.sampled_from(sorted(TOOL_FORMATS)), st.sampled_from(["", *sorted(REASONING_FORMATS)])
).map(lambda names: ChatFormats(*names))


@st.composite
def broken_outputs(draw: st.DrawFn) -> str:
    """Draw a text of markers, values and pieces of calls, in any order."""
    pieces = draw(st.lists(st.one_of(st.sampled_from(HARD), TEXTS, VALUES.map(json.dumps)), max_size=10))
    _, text = draw(st.sampled_from(NOTATIONS).flatmap(outputs))
    begin, end = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
    return "".join([*pieces, text[begin:end], *pieces[:2]])


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


@given(st.sampled_from(NOTATIONS).flatmap(lambda name: st.tuples(st.just(name), outputs(name))), st.data())
def test_arguments_of_a_cut_off_call_begin_the_whole_ones(
    drawn: tuple[str, tuple[list[Call], str]], data: st.DataObject
) -> None:
    notation, (_, text) = drawn
    formats = ChatFormats(format_name(notation))
    whole = parsed(formats, [text])
    found = parsed(formats, [text[: data.draw(st.integers(0, len(text)))]])
    for (name, arguments), (whole_name, whole_arguments) in zip(found.calls, whole.calls, strict=False):
        assert name == whole_name
        # An escape or a closing tag that is cut off stands for itself.
        assert whole_arguments.startswith(arguments[:-13]) or notation == "pythonic"


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


HERMES = ChatFormats("hermes", "think")
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
ONE = [("f", '{"a": 1}')]
CASES: list[tuple[ChatFormats, str, Said]] = [
    (HERMES, "Hello ", Said("Hello ")),
    (HERMES, f"<think>\nWell.\n</think>\n\nLet me look.\n{CALL}\n", Said("Let me look.", "Well.", ONE)),
    (HERMES, f"{CALL} and {CALL}", Said("and", "", ONE * 2)),
    (HERMES, f"<think>{CALL}", Said("", CALL)),
    (HERMES, "No <think> at the beginning", Said("No <think> at the beginning")),
    (HERMES, CALL.replace('"f"', '"g"'), Said(CALL.replace('"f"', '"g"'))),
    (HERMES, f"<tool_call>{CALL}", Said("<tool_call>", "", ONE)),
    (HERMES, '<tool_call>{"name": "f"}', Said("", "", [("f", "{}")])),
    (HERMES, '<tool_call>{"name": "f", "arguments": null}', Said("", "", [("f", "{}")])),
    (HERMES, '<tool_call>{"name": "f", "arguments": 5}', Said('<tool_call>{"name": "f", "arguments": 5}')),
    (HERMES, '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', Said("", "", ONE)),
    (HERMES, '<tool_call>{"id": 1, "name": "f", "arguments": "{\\"a\\": 1}"}', Said("", "", ONE)),
    (HERMES, "<tool_call>{'name': 'f', 'arguments': {'a': 1,},}", Said("", "", ONE)),
    (HERMES, f"{CALL[:-14]} too much</tool_call>", Said("too much</tool_call>", "", ONE)),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": wrong}', Said("wrong}", "", [("f", '{"a": ')])),
    (ChatFormats("llama3_json"), ' {"name": "f", "parameters": {"a": 1}}', Said("", "", ONE)),
    (
        ChatFormats("llama3_json"),
        '<|python_tag|>{"name": "f", "parameters": {"a": 1}}<|eom_id|>',
        Said("", "", ONE),
    ),
    (ChatFormats("llama3_json"), '{"name": "Ann", "age": 3}', Said('{"name": "Ann", "age": 3}')),
    (ChatFormats("llama3_json"), '<|python_tag|>print("a")<|eot_id|>', Said('<|python_tag|>print("a")')),
    (ChatFormats("pythonic"), "[1, 2]", Said("[1, 2]")),
    (ChatFormats("pythonic"), "<|python_start|>[f(a=1)]<|python_end|>", Said("", "", ONE)),
    (ChatFormats("pythonic"), "[f(a=1), g()]", Said(", g()]", "", ONE)),
    (ChatFormats("mistral"), "Hm.[TOOL_CALLS]f[CALL_ID]a1[ARGS]{'a': 1}</s>", Said("Hm.", "", ONE)),
    (ChatFormats("granite"), '<tool_call>[{"name": "f", "arguments": {"a": 1}}]', Said("", "", ONE)),
    (
        ChatFormats("qwen3_coder"),
        "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>",
        Said("", "", ONE),
    ),
]


@pytest.mark.parametrize(("formats", "text", "expected"), CASES)
def test_what_models_write_is_understood(formats: ChatFormats, text: str, expected: Said) -> None:
    found = parsed(formats, list(text))
    found.ids.clear()
    assert found == expected


IN_A_FORMAT = [
    (HERMES, f"<think>Hm</think>{CALL}", Said("", "Hm", ONE)),
    (HERMES, f" {CALL}\n{CALL}", Said("", "", ONE * 2)),
    (
        ChatFormats("qwen3_coder"),
        '{"a": "<function=f></function>"}',
        Said('{"a": "<function=f></function>"}'),
    ),
    (ChatFormats("pythonic"), '["<|python_start|>[f(a=1)]"]', Said('["<|python_start|>[f(a=1)]"]')),
    (ChatFormats("pythonic"), "[f(a=1)]", Said("", "", ONE)),
    (ChatFormats("mistral"), '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]', Said("", "", ONE)),
    (ChatFormats("hermes"), "[TOOL_CALLS", Said("[TOOL_CALLS")),
]


@pytest.mark.parametrize(("formats", "text", "expected"), IN_A_FORMAT)
def test_a_text_in_a_format_may_quote_calls(formats: ChatFormats, text: str, expected: Said) -> None:
    for pieces in (list(text), [text]):
        found = parsed(formats, pieces, has_format=True)
        found.ids.clear()
        assert found == expected


HARMONY = ChatFormats("harmony", "harmony")
FINAL = "<|start|>assistant<|channel|>final<|message|>"
HARMONY_CASES = [
    ("Hi", Said("Hi")),
    (f"<|channel|>analysis<|message|>Hm.<|end|>{FINAL}Hi", Said("Hi", "Hm.")),
    (f"<|channel|>commentary<|message|>First, <|end|>{FINAL}Hi<|return|>", Said("First,Hi")),
    (" to=functions.f<|channel|>commentary json<|message|>{'a': 1}", Said("", "", ONE)),
    ("<|channel|>commentary to=functions.f<|message|>{'a': x}", Said("x}", "", [("f", '{"a": ')])),
    ("<|channel|>commentary to=functions.g <|message|>{'a': 1}", Said("{'a': 1}")),
    ("<|channel|>analysis and more<|call|>", Said("analysis and more")),
]


@pytest.mark.parametrize(("text", "expected"), HARMONY_CASES)
def test_channels_of_harmony_are_told_apart(text: str, expected: Said) -> None:
    found = parsed(HARMONY, list(text))
    found.ids.clear()
    assert found == expected


def test_a_prompt_may_have_opened_the_analysis() -> None:
    text = "Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi"
    assert parsed(HARMONY, list(text), reasoning_open=True) == Said("Hi", "Hm.")


def test_without_tools_calls_are_content() -> None:
    assert parsed(ChatFormats("hermes"), [CALL], ()) == Said(CALL)


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
