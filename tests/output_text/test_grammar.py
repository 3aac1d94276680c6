"""Grammars: whatever tokens are drawn among the allowed, the text validates."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from tokenizers import Tokenizer

from output_text.detokenizer import Detokenizer
from output_text.grammar import Follower, Grammars, grammar_of
from output_text.refusal import GrammarRefused
from tests.fleet.driving import DEMO_MODEL
from tests.output_text.tokenizers_zoo import byte_level, sentence_piece, word_piece

VOCAB = 2048
TOKENIZER = DEMO_MODEL / "tokenizer.json"
EOS = 2
LONGEST = 300


@lru_cache(maxsize=1)
def grammars() -> Grammars:
    return Grammars(TOKENIZER, VOCAB, [EOS])


def begun(grammar: str) -> Follower:
    return grammars().compiled(grammar).begin()


@lru_cache(maxsize=1)
def detokenizer() -> Detokenizer:
    return Detokenizer.from_file(TOKENIZER)


def allowed_after(grammar: str, output: list[int]) -> list[int]:
    """The tokens that may follow an output, found from its beginning."""
    return unpacked(begun(grammar).allowed_after(output))


def unpacked(allowed: bytes | None) -> list[int]:
    bits = np.frombuffer(allowed or b"", dtype=np.uint8)
    return np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist()


def drawn(grammar: str, seed: int) -> tuple[list[int], bool]:
    """A random output, and whether it came to its end."""
    rng, follower, output = random.Random(seed), begun(grammar), list[int]()
    while len(output) < LONGEST:
        tokens = unpacked(follower.allowed_after(output))
        if not tokens:
            return output, False
        if EOS in tokens and (len(tokens) == 1 or rng.random() < 0.3):
            return output, True
        output.append(rng.choice([token for token in tokens if token != EOS]))
    return output, False


def text_of(output: list[int]) -> str:
    stream = detokenizer().stream()
    return "".join(map(stream.push, output)) + stream.flush()


NAMES = st.sampled_from(["a", "b", "name", "x-y", "é"])
NUMBERS = st.integers(-20, 20)
SCALARS = st.one_of(
    st.none(), st.booleans(), NUMBERS, st.sampled_from(["", "a", 'say "no"', "back\\slash", "naïve", "\n"])
)


def bounds(low: str, high: str, most: int) -> st.SearchStrategy[dict[str, Any]]:
    pairs = st.tuples(st.integers(0, most), st.integers(0, most)).map(sorted)
    return st.one_of(
        st.just({}),
        pairs.map(lambda pair: {low: pair[0], high: pair[1]}),
        pairs.map(lambda pair: {high: pair[1]}),
    )


def merged(*parts: dict[str, Any]) -> dict[str, Any]:
    return {key: value for part in parts for key, value in part.items()}


LEAVES = st.one_of(
    st.just(True),
    st.lists(SCALARS, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    SCALARS.map(lambda value: {"const": value}),
    st.sampled_from(["null", "boolean", "integer", "number", "string"]).map(lambda name: {"type": name}),
    st.builds(merged, st.just({"type": "string"}), bounds("minLength", "maxLength", 6)),
    st.builds(merged, st.just({"type": "integer"}), bounds("minimum", "maximum", 60)),
    st.builds(merged, st.just({"type": "number"}), bounds("exclusiveMinimum", "exclusiveMaximum", 9)),
    st.sampled_from([2, 3, 5]).map(lambda step: {"type": "integer", "multipleOf": step, "maximum": 50}),
    st.sampled_from(["^[a-c]{2}$", "x+y?", "^(no|yes)-[0-9]{1,3}$"]).map(
        lambda pattern: {"type": "string", "pattern": pattern}
    ),
    # Without dates: RFC 3339 has a year 0, and Python's calendar, by which the formats are checked, has not.
    st.sampled_from(["time", "email", "ipv4", "uuid", "hostname"]).map(
        lambda name: {"type": "string", "format": name}
    ),
    st.sampled_from(
        [{"not": {"type": "null"}}, {"oneOf": [{"type": "null"}]}, {"type": "array", "uniqueItems": True}]
    ),
)


def nested(schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.builds(
        lambda properties, num_required, others: {
            "type": "object",
            "properties": properties,
            "required": list(properties)[:num_required],
            "additionalProperties": others,
        },
        st.dictionaries(NAMES, schemas, max_size=3),
        st.integers(0, 3),
        st.sampled_from([False, True, {"type": "integer"}]),
    )
    arrays = st.builds(
        merged,
        schemas.map(lambda schema: {"type": "array", "items": schema}),
        bounds("minItems", "maxItems", 3),
    )
    tuples = st.lists(schemas, min_size=1, max_size=3).map(
        lambda parts: {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}
    )
    choices = st.lists(schemas, min_size=1, max_size=3).map(lambda parts: {"anyOf": parts})
    both = st.tuples(schemas, schemas).map(lambda parts: {"allOf": list(parts)})
    shared = schemas.map(
        lambda schema: {
            "$defs": {"d": schema},
            "type": "array",
            "items": {"$ref": "#/$defs/d"},
            "maxItems": 2,
        }
    )
    return st.one_of(objects, arrays, tuples, choices, both, shared)


SCHEMAS = st.recursive(LEAVES, nested, max_leaves=5)


@settings(max_examples=300)
@given(schema=SCHEMAS, seed=st.integers(0, 2**32))
def test_a_random_output_validates_or_the_schema_is_refused(schema: Any, seed: int) -> None:
    try:
        grammar = grammar_of("json_schema", json.dumps(schema))
        grammars().compiled(grammar)
    except GrammarRefused:
        return
    output, is_whole = drawn(grammar, seed)
    if is_whole:
        Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(
            json.loads(text_of(output))
        )


@settings(max_examples=60)
@given(schema=SCHEMAS, seed=st.integers(0, 2**32), data=st.data())
def test_the_state_is_a_function_of_the_tokens(schema: Any, seed: int, data: st.DataObject) -> None:
    """A choice that goes on elsewhere may draw what it might have drawn here."""
    try:
        grammar = grammar_of("json_schema", json.dumps(schema))
        grammars().compiled(grammar)
    except GrammarRefused:
        return
    output, _ = drawn(grammar, seed)
    follower = begun(grammar)
    places = sorted(data.draw(st.sets(st.integers(0, len(output)), max_size=5)))
    for place in places:
        assert unpacked(follower.allowed_after(output[:place])) == allowed_after(grammar, output[:place])


@pytest.mark.parametrize("keyword", ["not", "oneOf", "uniqueItems", "if", "dependentRequired"])
def test_keywords_that_cannot_be_guaranteed_are_refused_by_name(keyword: str) -> None:
    schemas: dict[str, Any] = {
        "not": {"not": {"type": "null"}},
        "oneOf": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        "uniqueItems": {"type": "array", "uniqueItems": True},
        "if": {"if": {"type": "null"}, "then": True},
        "dependentRequired": {"type": "object", "dependentRequired": {"a": ["b"]}},
    }
    with pytest.raises(GrammarRefused, match=keyword):
        grammar_of("json_schema", json.dumps(schemas[keyword]))


def test_a_model_without_an_end_of_sequence_token_follows_no_grammar() -> None:
    endless = Grammars(TOKENIZER, VOCAB, [])
    with pytest.raises(GrammarRefused, match="end-of-sequence"):
        endless.compiled(grammar_of("json_object", "{}"))


@pytest.mark.parametrize("make", [byte_level, partial(sentence_piece, strips=True), word_piece])
def test_a_tokenizer_of_any_kind_follows_grammars_or_says_why_not(
    make: Callable[[], Tokenizer], tmp_path: Path
) -> None:
    tokenizer, file = make(), tmp_path / "tokenizer.json"
    tokenizer.save(str(file))
    of_any_kind, grammar = Grammars(file, tokenizer.get_vocab_size(), [0]), grammar_of("regex", "[ab]")
    with contextlib.suppress(GrammarRefused):
        assert unpacked(of_any_kind.compiled(grammar).begin().allowed_after(()))
        return
    with pytest.raises(GrammarRefused, match=r"known|may follow"):
        of_any_kind.compiled(grammar)


def test_an_output_outside_of_its_grammar_may_not_go_on() -> None:
    follower = begun(grammar_of("choice", '["yes"]'))
    assert follower.allowed_after([5, 6, 7]) is None
    assert follower.error


EXPONENTIAL = "((((a{1,30}){1,30}){1,30}){1,3})"
"""Compiles at once, and becomes too complex after some tokens."""


def test_a_grammar_that_becomes_too_complex_does_not_end_its_output() -> None:
    follower = begun(grammar_of("regex", EXPONENTIAL))
    output = list[int]()
    while (allowed := unpacked(follower.allowed_after(output))) and len(output) < LONGEST:
        output.append(min(token for token in allowed if token != EOS))
    assert not allowed
    assert "too many" in follower.error
