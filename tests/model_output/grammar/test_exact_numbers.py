"""Numbers in schemas are kept to the last digit, or their schemas are refused by name."""

from __future__ import annotations

import json
from decimal import Decimal
from functools import lru_cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from model_output.grammar.exact_numbers import check_numbers, schema_of
from model_output.grammar.grammar import Grammars, grammar_of
from model_output.grammar.refusal import GrammarRefused
from tests.fleets import DEMO_MODEL

FILE = DEMO_MODEL / "tokenizer.json"
EOS = 1


@lru_cache
def grammars() -> Grammars:
    return Grammars(FILE, 2048, [EOS])


@lru_cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(FILE))


def allows(grammar: str, text: str) -> bool:
    follower = grammars().compiled(grammar).begin()
    token_ids = [*tokenizer().encode(text, add_special_tokens=False).ids, EOS]
    return follower.num_allowed(token_ids) == len(token_ids)


def written(number: Decimal) -> str:
    """The number as grammars write it: without an exponent, and without zeros at the end."""
    text = format(number, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return text.replace("-0", "0") if number == 0 else text


whole = st.one_of(st.integers(-(2**70), 2**70), st.integers(2**53 - 3, 2**53 + 3), st.integers(-20, 20))
numbers = st.one_of(
    whole.map(Decimal),
    st.decimals(-1000, 1000, allow_nan=False, places=4),
    st.decimals(-1000, 1000, allow_nan=False, places=17),
    st.floats(-1e17, 1e17, allow_nan=False).map(lambda value: Decimal(repr(value))),
)


@given(number=numbers, key=st.sampled_from(["const", "enum", "inner"]))
@example(Decimal(9007199254740993), "const")
@example(Decimal("123456789012345.67"), "enum")
@example(Decimal(-9223372036854775808), "const")
def test_a_constant_is_written_to_the_last_digit_or_refused(number: Decimal, key: str) -> None:
    text = str(number)
    schema = {"const": f'{{"const": {text}}}', "enum": f'{{"enum": [{text}]}}'}.get(
        key, f'{{"const": [{{"id": {text}}}]}}'
    )
    around = '[{{"id": {}}}]' if key == "inner" else "{}"
    try:
        grammar = grammar_of("json_schema", schema)
    except GrammarRefused:
        # Not those that programs write without a thought.
        _, digits, exponent = number.normalize().as_tuple()
        assert abs(number) >= 2**53 or len(digits) > 15 or int(exponent) < -22
        return
    assert allows(grammar, around.format(written(number)))


@given(
    number=numbers, keyword=st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
)
@example(Decimal(9007199254740993), "exclusiveMaximum")
@example(Decimal("0.12345678901234567"), "minimum")
def test_a_bound_is_kept_to_the_last_digit_or_refused(number: Decimal, keyword: str) -> None:
    kind = "integer" if number == number.to_integral() else "number"
    try:
        grammar = grammar_of("json_schema", f'{{"type": "{kind}", "{keyword}": {number}}}')
        grammars().compiled(grammar)
    except GrammarRefused:
        return
    step = Decimal(1) if kind == "integer" else Decimal("0.0001")
    for value in (number - step, number, number + step):
        keeps = {
            "minimum": value >= number,
            "maximum": value <= number,
            "exclusiveMinimum": value > number,
            "exclusiveMaximum": value < number,
        }
        allowed = allows(grammar, written(value))
        assert keeps[keyword] or not allowed, value
        assert allowed or kind == "number" or not keeps[keyword], value


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ('{"const": 9007199254740993}', "'const' has 9007199254740993"),
        ('{"properties": {"id": {"enum": [1, {"a": [9007199254740993]}]}}}', "'enum' has 9007199254740993"),
        ('{"minimum": 9007199254740993, "maximum": 9007199254740993}', "imum' has 9007199254740993"),
        ('{"type": "number", "multipleOf": 0.1234567890123456789}', "'multipleOf' has 0.1234567890123456789"),
        ('{"const": 1e400}', "'const' has 1e400"),
        ('{"minimum": 1e-400}', "'minimum' has 1e-400"),
        ('{"anyOf": [{"exclusiveMinimum": -1e23}]}', "'exclusiveMinimum' has -1e+23"),
        ('{"$defs": {"a": {"items": {"maximum": 18446744073709551615}}}}', "18446744073709551615"),
        ('{"maxLength": 36893488147419103232}', "'maxLength' has 36893488147419103232"),
        ('{"default": [-1e400]}', "'default' has -1e400"),
        ('{"examples": [%s]}' % ("9" * 400), "'examples' has 9999"),
        ('{"$ref": "#/default", "default": {"const": 9007199254740993}}', "'default' has 9007199254740993"),
        ('{"$ref": "#/examples/0", "examples": [{"enum": [9007199254740993]}]}', "9007199254740993"),
        ('{"$ref": "#/%64efault", "default": {"minimum": 9007199254740993}}', "9007199254740993"),
        ('{"items": {"$ref": "#/$defs/a/default"}, "$defs": {"a": {"default": {"const": 1e22}}}}', "1e+22"),
        ('{"const": %s}' % ("9" * 5000), "thousands of digits"),
        ('{"const": NaN}', "NaN is not JSON"),
    ],
)
def test_a_number_that_would_be_rounded_is_refused_by_name(schema: str, named: str) -> None:
    with pytest.raises(GrammarRefused, match=named.replace("+", r"\+")):
        grammar_of("json_schema", schema)


def test_schemas_in_a_grammar_are_checked_too() -> None:
    with pytest.raises(GrammarRefused, match="'const' has 9007199254740993"):
        grammar_of("grammar", 'start: "a" b\nb: %json {"const": 1}\n | %json\n{"const": 9007199254740993}')
    grammar = grammar_of("grammar", 'start: "%json " %json {"const": 90071992547409}')
    assert allows(grammar, "%json 90071992547409")


@pytest.mark.parametrize(
    "schema",
    [
        '{"const": 9007199254740991}',
        '{"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991}',
        '{"properties": {"const": {"type": "string"}, "minimum": {"default": 9007199254740993}}}',
        '{"type": "string", "examples": [1e300], "default": 0.1234567890123456789}',
        '{"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer", "default": 9007199254740993}}}',
        '{"const": 3.141592653589793}',
        '{"const": "9007199254740993"}',
        '{"const": 1.50000000000000000000000}',
        '{"enum": [true, null, -0, 1E5]}',
    ],
)
def test_other_numbers_are_taken(schema: str) -> None:
    check_numbers(schema_of(schema))
    grammars().compiled(grammar_of("json_schema", schema))


def test_a_number_is_written_again_as_it_is_read() -> None:
    assert json.dumps(schema_of('{"a": [1.5, 2, 0.1]}')) == '{"a": [1.5, 2, 0.1]}'
