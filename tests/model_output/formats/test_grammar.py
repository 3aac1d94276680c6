"""Grammars of calls: whatever tokens are drawn among the allowed, the parser finds valid calls."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from model_output.formats import (
    TOOL_FORMATS,
    ChatFormats,
    NotForcible,
    Tool,
    are_calls_unlike_json,
    around_format,
    forced_calls,
    guided_calls,
)
from model_output.grammar.grammar import grammar_of
from tests.fleets import DEMO_MODEL
from tests.model_output.formats.writing import NOTATIONS, Call, Said, format_name, parsed, written

LONGEST = 400
SPECIAL = (
    *("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]", "<|tool_call|>", "<|/tool_call|>", "<|python_tag|>"),
    *("<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|return|>"),
)
TOOLS = [
    Tool(
        "get_weather",
        parameters={
            "type": "object",
            "properties": {
                "city": {"$ref": "#/$defs/city"},
                "days": {"type": "integer", "minimum": 0, "maximum": 99},
                "note": {"type": ["string", "null"], "maxLength": 3},
                "tags": {"type": "array", "items": {"$ref": "#/$defs/city"}, "maxItems": 2},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
            "$defs": {"city": {"enum": ["Rome", 'a "b"\\', "5"], "type": "string"}},
        },
    ),
    Tool("tell-time", parameters={"type": "object", "properties": {}, "additionalProperties": False}),
]
REASONING = {"hermes": "think", "qwen3_coder": "think", "mistral": "mistral", "granite": "granite"}
REASONING["harmony"] = "harmony"


class Vocabulary:
    """The demo model's vocabulary with some special tokens more, which `ids` has by their texts."""

    def __init__(self, special: tuple[str, ...]) -> None:
        stated = json.loads((DEMO_MODEL / "tokenizer.json").read_text(encoding="utf-8"))
        known = {token["content"] for token in stated["added_tokens"]}
        size = len(stated["model"]["vocab"])
        for text in special:
            if text not in known:
                flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
                stated["added_tokens"].append({"id": size, "content": text, "special": True} | flags)
                size += 1
        self.ids = {token["content"]: token["id"] for token in stated["added_tokens"]}
        self.eos = self.ids["<|eos|>"]
        self.text = Tokenizer.from_str(json.dumps(stated))
        self.guide = LLTokenizer(json.dumps(stated), n_vocab=size, eos_token=[self.eos])

    def matcher(self, grammar: str) -> LLMatcher:
        matcher = LLMatcher(self.guide, grammar, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        return matcher

    def follows(self, grammar: str, text: str) -> bool:
        """Whether a whole text follows the grammar."""
        matcher, tokens = self.matcher(grammar), self.text.encode(text, add_special_tokens=False).ids
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    def drawn(self, grammar: str, seed: int) -> tuple[str, bool]:
        """A random output, and whether it came to its end."""
        rng, matcher, output = random.Random(seed), self.matcher(grammar), list[int]()
        while len(output) < LONGEST:
            allowed = [
                8 * place + bit
                for place, byte in enumerate(bytes(matcher.compute_bitmask()))
                for bit in range(8)
                if byte >> bit & 1
            ]
            if self.eos in allowed and (len(allowed) == 1 or rng.random() < 0.3):
                return self.text.decode(output, skip_special_tokens=False), True
            # Markers are rare among random tokens: prefer them, so that outputs come to their calls.
            markers = [token for token in allowed if token >= min(self.ids.values()) and token != self.eos]
            markers = [token for token in markers if token in self.ids.values()]
            output.append(rng.choice(markers or [token for token in allowed if token != self.eos]))
            assert matcher.consume_token(output[-1])
        return self.text.decode(output, skip_special_tokens=False), False


@lru_cache
def vocabulary(*special: str) -> Vocabulary:
    return Vocabulary(special)


def special_of(notation: str) -> tuple[str, ...]:
    return tuple(text for text in SPECIAL if text != "[ARGS]" or notation == "mistral_args")


def assert_valid(said: Said) -> None:
    schemas = {tool.name: tool.parameters for tool in TOOLS}
    for name, arguments in said.calls:
        Draft202012Validator(schemas[name]).validate(json.loads(arguments))


@pytest.mark.parametrize("notation", NOTATIONS)
@given(seed=st.integers(0, 10**6), parallel=st.booleans(), spelled=st.booleans())
@settings(max_examples=8, deadline=None)
def test_drawn_outputs_are_valid_calls(notation: str, seed: int, parallel: bool, spelled: bool) -> None:
    words = vocabulary() if spelled and notation != "mistral_args" else vocabulary(*special_of(notation))
    formats = ChatFormats(format_name(notation))
    grammar = forced_calls(formats, TOOLS, parallel=parallel, special_tokens=words.ids)
    text, is_whole = words.drawn(grammar, seed)
    said = parsed(formats, [text], TOOLS)
    if is_whole:
        assert len(said.calls) == 1 or (parallel and said.calls)
        assert_valid(said)
    else:
        assert_valid(Said(calls=said.calls[:-1]))
    assert said.content == "" or not is_whole


CALLS: list[Call] = [
    ("get_weather", {"city": "Rome", "days": 3}),
    ("tell-time", {}),
]
WRONG: list[Call] = [("get_weather", {"city": "Oslo", "days": 3})]


def in_json(notation: str, calls: Sequence[Call]) -> str:
    """The calls in a notation, all of their values in JSON, as grammars write them."""
    return written(notation, calls).replace("'", '"')


def thought(reasoning: str) -> str:
    return {
        "think": "<think>\nHm <tool_call>?\n</think>\n\n",
        "mistral": "[THINK]Hm [ARGS?[/THINK]",
        "granite": "Here is my thought process: Hm Here is my response: ",
        "harmony": "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant",
        "": "",
    }[reasoning]


@pytest.mark.parametrize("notation", NOTATIONS)
def test_what_a_template_writes_follows_the_grammars(notation: str) -> None:
    words = vocabulary(*special_of(notation))
    reasoning = REASONING.get(format_name(notation), "")
    formats = ChatFormats(format_name(notation), reasoning)
    calls = CALLS[:1] if notation == "harmony" else CALLS
    text, wrong = (in_json(notation, some).removesuffix("<|call|>") for some in (calls, WRONG))
    forced = forced_calls(formats, TOOLS, special_tokens=words.ids)
    guided = guided_calls(formats, TOOLS, special_tokens=words.ids)
    for begin in ("", thought(reasoning)):
        for grammar in (forced, guided):
            assert words.follows(grammar, begin + text)
            assert not words.follows(grammar, begin + wrong)
        said = "<|channel|>final<|message|>Hello." if notation == "harmony" else "Hello."
        assert words.follows(guided, begin + said)
        assert not words.follows(forced, begin + said)
    if reasoning and not notation.startswith("harmony"):
        after = thought(reasoning).partition("Hm")[2]
        is_open = forced_calls(formats, TOOLS, reasoning_open=True, special_tokens=words.ids)
        assert words.follows(is_open, f"Hm{after}{text}")
        assert not words.follows(is_open, text)


@pytest.mark.parametrize("notation", [name for name in NOTATIONS if name != "harmony"])
def test_several_calls_follow_only_where_they_are_allowed(notation: str) -> None:
    words, formats = vocabulary(*special_of(notation)), ChatFormats(format_name(notation))
    for write in (forced_calls, guided_calls):
        grammar = write(formats, TOOLS, parallel=False, special_tokens=words.ids)
        assert words.follows(grammar, in_json(notation, CALLS[:1]))
        assert not words.follows(grammar, in_json(notation, CALLS))


@pytest.mark.parametrize("name", sorted(set(TOOL_FORMATS) - {"pythonic"}))
@given(seed=st.integers(0, 10**6))
@settings(max_examples=4, deadline=None)
def test_calls_in_drawn_texts_keep_to_their_schemas(name: str, seed: int) -> None:
    words = vocabulary(*special_of("mistral"))
    formats = ChatFormats(name)
    text, is_whole = words.drawn(guided_calls(formats, TOOLS, special_tokens=words.ids), seed)
    said = parsed(formats, [text], TOOLS)
    assert_valid(said if is_whole else Said(calls=said.calls[:-1]))


YES = {
    "type": "object",
    "properties": {"yes": {"type": "boolean"}},
    "required": ["yes"],
    "additionalProperties": False,
}
FORMS = [
    ("json_schema", json.dumps(YES)),
    ("regex", "[0-9]+"),
    ("choice", '["a", "b"]'),
    ("grammar", 'start: "x"+'),
]


@pytest.mark.parametrize("spelled", [False, True])
@pytest.mark.parametrize("name", sorted(set(REASONING.values())))
def test_a_model_may_think_before_it_keeps_to_a_format(name: str, spelled: bool) -> None:
    words, formats = vocabulary(*(() if spelled else SPECIAL)), ChatFormats("", name)
    final = "<|channel|>final<|message|>" if name == "harmony" else ""
    for (kind, form), text in zip(FORMS, ('{"yes": true}', "42", "b", "xx"), strict=True):
        grammar = grammar_of(kind, form, around_format(formats, special_tokens=words.ids))
        for begin in ("", thought(name)):
            assert words.follows(grammar, f"{begin}{final}{text}")
            assert not words.follows(grammar, f"{begin}{final}Hello")
        before = around_format(formats, reasoning_open=True, special_tokens=words.ids)
        rest = f"Hm{thought(name).partition('Hm')[2]}{final}{text}"
        assert words.follows(grammar_of(kind, form, before), rest)
        assert not words.follows(grammar_of(kind, form, before), final + text)
        said = parsed(formats, [rest], reasoning_open=True)
        assert (said.content, said.reasoning[:2]) == (text, "Hm")


@pytest.mark.parametrize("name", sorted(set(REASONING.values())))
@given(seed=st.integers(0, 10**6))
@settings(max_examples=8, deadline=None)
def test_what_is_said_after_drawn_thoughts_keeps_to_the_format(name: str, seed: int) -> None:
    words, formats = vocabulary(*SPECIAL), ChatFormats("", name)
    before = around_format(formats, special_tokens=words.ids)
    text, is_whole = words.drawn(grammar_of("json_schema", json.dumps(YES), before), seed)
    if is_whole:
        Draft202012Validator(YES).validate(json.loads(parsed(formats, [text]).content))


BESIDE_JSON = [name for name in NOTATIONS if are_calls_unlike_json(ChatFormats(format_name(name)))]


@pytest.mark.parametrize("notation", BESIDE_JSON)
def test_an_output_is_in_a_format_or_calls(notation: str) -> None:
    words, name = vocabulary(*special_of(notation)), format_name(notation)
    formats = ChatFormats(name, REASONING.get(name, ""))
    around = around_format(formats, TOOLS, special_tokens=words.ids)
    calls = CALLS[:1] if notation == "harmony" else CALLS
    right, wrong = (in_json(notation, some).removesuffix("<|call|>") for some in (calls, WRONG))
    final = "<|channel|>final<|message|>" if notation == "harmony" else ""
    numbers = json.dumps({"type": "array", "items": {"type": "number"}})
    for form, text in ((json.dumps(YES), '{"yes": true}'), (numbers, "[1, 2]"), (numbers, "[]")):
        grammar = grammar_of("json_schema", form, around)
        for begin in ("", thought(formats.reasoning)):
            assert words.follows(grammar, f"{begin}{final}{text}")
            assert words.follows(grammar, begin + right)
            assert not words.follows(grammar, begin + wrong)
            assert not words.follows(grammar, f"{begin}{final}Hello")


def test_the_formats_of_outputs_beside_calls_are_known() -> None:
    assert set(TOOL_FORMATS) - {format_name(name) for name in BESIDE_JSON} == {"llama3_json"}
    assert not are_calls_unlike_json(ChatFormats())


def test_nothing_is_around_the_format_of_a_model_that_does_not_think() -> None:
    assert around_format(ChatFormats("hermes", "")) == ""


NOT_FORCIBLE: list[tuple[str, dict[str, Any], str]] = [
    ("pythonic", {"anyOf": [{}]}, "anyOf"),
    ("pythonic", {"properties": {"not-a-name": {}}}, "not-a-name"),
    ("pythonic", {"properties": {"a": {"$ref": "#"}}}, "#"),
    ("qwen3_coder", {"properties": {"a b": {}}}, "a b"),
    ("qwen3_coder", {"properties": {"a": {"type": "string", "pattern": "b"}}}, "pattern"),
    ("qwen3_coder", {"required": ["a"]}, "'a'"),
]


@pytest.mark.parametrize(("name", "parameters", "named"), NOT_FORCIBLE)
def test_what_a_notation_cannot_keep_is_refused(name: str, parameters: dict[str, Any], named: str) -> None:
    for write in (forced_calls, guided_calls):
        with pytest.raises(NotForcible, match="tool 'f'.*" + named):
            write(ChatFormats(name), [Tool("f", parameters=parameters)])


@pytest.mark.parametrize("name", ["pythonic", "qwen3_coder"])
def test_a_grammar_that_becomes_too_long_is_refused(name: str) -> None:
    """It is not written whole: 95 kB of schemas would make 45 MB."""
    definitions = {"a": {"enum": ["x" * 90_000]}}
    properties = {f"p{place}": {"items": {"$ref": "#/$defs/a"}} for place in range(500)}
    tools = [Tool("f", parameters={"properties": properties, "$defs": definitions})]
    for write in (forced_calls, guided_calls):
        tracemalloc.start()
        with pytest.raises(NotForcible, match="more than 262144 characters"):
            write(ChatFormats(name), tools)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 4 << 20


@pytest.mark.parametrize("name", ["pythonic", "qwen3_coder"])
@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": 5},
        {"properties": {"a": 5}},
        {"properties": {}, "required": 5},
        {"required": [[1]]},
        {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": 5},
    ],
)
def test_parameters_that_are_no_schema_are_refused(name: str, parameters: dict[str, Any]) -> None:
    with pytest.raises(NotForcible, match="not a JSON Schema"):
        forced_calls(ChatFormats(name), [Tool("f", parameters=parameters)])


@pytest.mark.parametrize("name", ["pythonic", "qwen3_coder"])
def test_a_parameter_repeats_only_the_definitions_that_it_needs(name: str) -> None:
    """Else a few hundred parameters with a definition each would make a grammar that is too long."""
    places = range(300)
    definitions: dict[str, Any] = {f"d{place}": {"enum": [f"{place}" * 20]} for place in places}
    definitions["d0"] = {"items": {"$ref": "#/$defs/d1"}}
    properties = {f"p{place}": {"items": {"$ref": f"#/$defs/d{place}"}} for place in places}
    tools = [Tool("f", parameters={"properties": properties, "required": ["p0"], "$defs": definitions})]
    grammar = forced_calls(ChatFormats(name), tools)
    assert grammar.count(json.dumps({"enum": ["1" * 20]})) == 2, "for p1, and for p0 by way of d0"
    assert grammar.count(json.dumps({"enum": ["2" * 20]})) == 1
