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
from tokenizers import Tokenizer

from model_output.grammar.bounds import bounded
from model_output.grammar.grammar import Follower, Grammars, grammar_for, grammar_of
from model_output.grammar.refusal import GrammarRefused
from model_output.text.detokenizer import Detokenizer
from tests.fleets import DEMO_MODEL
from tests.model_output.text.many_schemas import Trial
from tests.model_output.text.schemas import is_date, is_time, schema
from tests.model_output.text.tokenizers_zoo import byte_level, sentence_piece, word_piece

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


SCHEMAS = st.integers(0, 2**32).map(lambda seed: json.dumps(schema(random.Random(seed))))


def test_random_outputs_validate_or_their_schema_is_refused() -> None:
    """`make test-schemas` tries more of them."""
    tally = Trial().run(num_schemas=200, num_outputs=2, seed=7)
    assert not tally.wrong, "\n".join(tally.wrong)
    assert tally.valid > 200


def test_only_schemas_get_bounds_whatever_their_names() -> None:
    time = {"format": "time"}
    found = bounded({"properties": {"default": time, "const": [time]}, "const": time})
    assert found["properties"]["default"]["allOf"]
    assert found["properties"]["const"][0]["allOf"]
    assert found["const"] == time
    assert bounded({"format": "time", "allOf": 5}) == {"format": "time", "allOf": 5}


def test_the_validator_follows_the_rfcs() -> None:
    assert is_date("0000-02-29")
    assert not is_date("0100-02-29")
    assert is_time("23:59:60Z")
    assert is_time("01:29:60+01:30")
    assert not is_time("12:59:60Z")


@settings(max_examples=60)
@given(text=SCHEMAS, seed=st.integers(0, 2**32), data=st.data())
def test_the_state_is_a_function_of_the_tokens(text: str, seed: int, data: st.DataObject) -> None:
    """A choice that goes on elsewhere may draw what it might have drawn here."""
    try:
        grammar = grammar_of("json_schema", text)
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


WORDS = [
    ("json_schema", '{"if": {}, "then": true}', "'if' and 'then' cannot be guaranteed"),
    ("json_schema", '{"oneOf": [{}, {}]}', "'oneOf' is guaranteed only where its schemas cannot overlap"),
    (
        "json_schema",
        json.dumps({"type": "string", "pattern": "x" * 3000 + "(?=a)"}),
        f"the pattern {'x' * 37}...: look-around, including look-ahead and look-behind, is not supported",
    ),
    (
        "json_schema",
        '{"type": "string", "pattern": "a", "const": "b"}',
        "nothing satisfies it: its patterns and values exclude each other",
    ),
    ("json_schema", "false", "llguidance cannot compile it"),
    ("regex", "(a", "the pattern (a: unclosed group"),
    ("grammar", "start: a", 'line 1, column 8: unknown name: "a"'),
]


@pytest.mark.parametrize(("kind", "text", "words"), WORDS)
def test_a_refusal_names_the_keyword_and_dumps_nothing(kind: str, text: str, words: str) -> None:
    with pytest.raises(GrammarRefused) as refused:
        grammars().compiled(grammar_of(kind, text))
    assert str(refused.value) == words


def test_a_format_that_needs_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_without_memory(_: object) -> str:
        raise MemoryError

    monkeypatch.setattr(json, "loads", compile_without_memory)
    with pytest.raises(GrammarRefused, match="too much memory"):
        grammar_of("choice", '["a"]')


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


@pytest.mark.parametrize(
    ("kind", "text", "around", "written"),
    [
        ("json_schema", '{"const": "x<|eos|>y"}', "", '"x<|eos|>y"'),
        ("json_schema", '{"const": "x<|eos|>y"}', 'start: "a" @format', 'a"x<|eos|>y"'),
        ("json_schema", '{"const": {"<|end|>": 1}}', "", '{"<|end|>": 1}'),
        ("choice", '["x<|end|>y"]', "", "x<|end|>y"),
        ("regex", r"x<\|end\|>y", "", "x<|end|>y"),
        ("grammar", 'start: "x<|end|>y"', "", "x<|end|>y"),
        ("grammar", 'root ::= "x<|eos|>" "y"', "", "x<|eos|>y"),
    ],
)
@pytest.mark.parametrize("tenant", ["", "one"])
def test_a_format_with_the_text_of_a_special_token_is_written_as_text(
    kind: str, text: str, around: str, written: str, tenant: str
) -> None:
    output, is_whole = drawn(grammar_for(tenant, grammar_of(kind, text, around)), 1)
    assert is_whole
    assert Tokenizer.from_file(str(TOKENIZER)).decode(output, skip_special_tokens=False) == written


def test_a_grammar_may_name_special_tokens() -> None:
    output, is_whole = drawn(grammar_of("grammar", 'start: "x" <|user|> <[4]> "<|user|>"'), 1)
    assert is_whole
    assert [token_id for token_id in output if token_id < 6] == [4, 4]


def test_an_output_outside_of_its_grammar_may_not_go_on() -> None:
    follower = begun(grammar_of("choice", '["yes"]'))
    assert follower.allowed_after([5, 6, 7]) is None
    assert follower.error


EXPONENTIAL = "((((a{1,30}){1,30}){1,30}){1,3})"
"""Compiles at once, and becomes too complex after some tokens."""


AMBIGUOUS = {
    "anyOf": [
        {
            "type": "object",
            "properties": {f"p{number}_{member}": {"type": "string"} for number in range(60)},
        }
        for member in range(60)
    ]
}
"""Its second token begins thousands of properties."""


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json_schema", json.dumps(AMBIGUOUS)),
        ("grammar", 'root ::= "a"{1000000}'),
        ("grammar", 'root ::= ("a"{1000}){1000}'),
        ("regex", "a{1000000}"),
    ],
)
def test_a_grammar_too_complex_from_its_second_token_is_refused(kind: str, text: str) -> None:
    with pytest.raises(GrammarRefused, match="too complex to follow"):
        begun(grammar_of(kind, text))


def test_a_grammar_that_becomes_too_complex_does_not_end_its_output() -> None:
    follower = begun(grammar_of("regex", EXPONENTIAL))
    output = list[int]()
    while (allowed := unpacked(follower.allowed_after(output))) and len(output) < LONGEST:
        output.append(min(token for token in allowed if token != EOS))
    assert not allowed
    assert follower.error.startswith("the format became too complex")
