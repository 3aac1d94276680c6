"""Grammars in EBNF mean what they say, and what cannot be read is refused by its line."""

from __future__ import annotations

import json
import re
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from model_output.grammar.grammar import grammar_of
from model_output.grammar.refusal import GrammarRefused
from tests.model_output.grammar.test_grammar import EOS, TOKENIZER, begun, drawn, text_of, unpacked

JSON_LIKE = r"""
root ::= value   # the whole text
value ::= object | array | string | number | "true" | "null"
object ::= "{" ws (pair ("," ws pair)*)? "}"
pair ::= string ":" ws value
array ::= "[" ws (
    value ("," ws value)* )? "]"
string ::= "\"" ([^"\\\x00-\x1f] | "\\" ["\\/bfnrt])* "\""
number ::= "-"? ("0" | [1-9] [0-9]*)
  ("." [0-9]{1,3})?
ws ::= [ \t]?
"""
FOLLOWED = [
    (JSON_LIKE, ['{"a": [1, true,"x\\n"], "é": null}', "-10.125"], ['{"a" 1}', "[01]", "1.", '"\n"']),
    ('root ::= "if" | word\nword ::= [a-z]+', ["if", "iffy", "i"], ["", "If"]),
    ('root ::= ("ab" | "a") "bc"', ["abc", "abbc"], ["ac"]),
    (r'root ::= "\u00e9\x41\U0001F600\t" . root?', ["éA😀\t\n", "éA😀\t.éA😀\t-"], ["éA😀\t"]),
    (r"root ::= [\u0041bc] [-a] [a-] [\]\-^]", ["A--]", "ca-^"], ["\u41bc--]", "A-b]"]),
    ("root ::= [a-f&&b]{2} | [^a-z\\n]", ["&&", "ad", "A"], ["\n", "g", "aaa"]),
    ('nested-Name ::= "(" nested-Name ")" | ""\nroot ::= nested-Name', ["", "(())"], ["(()"]),
]


@lru_cache(maxsize=1)
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TOKENIZER))


def follows(grammar: str, text: str) -> bool:
    """Whether a whole text follows a grammar."""
    follower = begun(grammar_of("grammar", grammar))
    tokens = tokenizer().encode(text, add_special_tokens=False).ids
    return EOS in unpacked(follower.allowed_after(tokens))


@pytest.mark.parametrize(("grammar", "right", "wrong"), FOLLOWED)
def test_texts_follow_or_not(grammar: str, right: list[str], wrong: list[str]) -> None:
    assert [text for text in right if not follows(grammar, text)] == []
    assert [text for text in wrong if follows(grammar, text)] == []


def _either(parts: list[tuple[str, str]]) -> tuple[str, str]:
    return f"({' | '.join(ours for ours, _ in parts)})", f"({'|'.join(theirs for _, theirs in parts)})"


def _in_a_row(parts: list[tuple[str, str]]) -> tuple[str, str]:
    return f"({' '.join(ours for ours, _ in parts)})", f"({''.join(theirs for _, theirs in parts)})"


PARTS = st.recursive(
    st.one_of(
        st.text("ab", max_size=3).map(lambda text: (json.dumps(text), text)),
        st.sampled_from(["[a]", "[^a]", "[ab]", "[a-c]"]).map(lambda text: (text, text)),
    ),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(_either),
        st.lists(inner, min_size=1, max_size=3).map(_in_a_row),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}"])).map(
            lambda both: (f"({both[0][0]}){both[1]}", f"({both[0][1]}){both[1]}")
        ),
    ),
    max_leaves=6,
)
"""A part of a grammar, in EBNF and as a regular expression."""


@settings(max_examples=40, deadline=None)
@given(part=PARTS, texts=st.lists(st.text("ab", max_size=5), max_size=4), seed=st.integers(0, 2**32))
def test_a_grammar_says_what_a_regular_expression_says(
    part: tuple[str, str], texts: list[str], seed: int
) -> None:
    grammar, expression = f"root ::= {part[0]}", re.compile(part[1])
    for text in texts:
        assert follows(grammar, text) == bool(expression.fullmatch(text)), text
    output, is_whole = drawn(grammar_of("grammar", grammar), seed)
    assert not is_whole or expression.fullmatch(text_of(output))


REFUSED = [
    ("root ::= 'a'", "line 1: \"'a'\" is not EBNF"),
    ('a ::= "a"', "line 1: there is no rule 'root'"),
    ('root ::= "a"\n  b', "line 2: there is no rule 'b'"),
    ('root ::= ("a"', "line 1: '(' is not closed"),
    ("root ::= []", "line 1: [] has no characters"),
    ("root ::= [z-a]", "line 1: [z-a] has a range that ends before it begins"),
    (r'root ::= "\q"', "line 1: the escape '\\\\q' is not known"),
    (r'root ::= "\ud800"', "line 1: '\\\\ud800' is not a character"),
    ('root ::= "a"\nroot ::= "b"', "line 2: rule 'root' is defined twice"),
    ('root ::= "a" )', "line 1: ')' is where the name of a rule is expected"),
    ("root ::= " + "(" * 5000, "it is nested too deeply"),
]


@pytest.mark.parametrize(("grammar", "words"), REFUSED)
def test_what_cannot_be_read_is_refused_by_its_line(grammar: str, words: str) -> None:
    with pytest.raises(GrammarRefused) as refused:
        grammar_of("grammar", grammar)
    assert str(refused.value) == words
