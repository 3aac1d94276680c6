"""EBNF as llama.cpp and xgrammar write it (`root ::= ...`), as a grammar in llguidance's dialect of Lark.

A rule ends where the next one begins, so line breaks mean nothing. Each character is a lexeme of its own:
llguidance takes the longest lexeme, and one of several characters could swallow what the grammar needs next.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

_TOKEN = re.compile(
    r"""(?P<skipped> \s+ | \#[^\n]* )
    | (?P<define> ::= )
    | (?P<name> [\w-]+ )
    | (?P<text> "(?:[^"\\\n]|\\.)*" )
    | (?P<class> \[(?:[^\]\\\n]|\\.)*\] )
    | (?P<repeat> [*+?] | \{\s*\d+\s*(?:,\s*\d*\s*)?\} )
    | (?P<sign> [()|.] )
    | (?P<end> \Z )""",
    re.VERBOSE,
)
_IS_EBNF = re.compile(r"^[ \t]*[\w-]+\s*::=", re.MULTILINE)
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))|(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"} | {sign: sign for sign in "\\\"'[]-^/"}


def is_ebnf(grammar: str) -> bool:
    """Return whether a grammar is EBNF, and not Lark."""
    return _IS_EBNF.search(grammar) is not None


def lark_of(grammar: str) -> str:
    """Return a grammar in Lark, whose `start` is `root`. Raises `ValueError` that names the line."""
    return _Reader(grammar).read()


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


class _Reader:
    """Reads the tokens of one grammar, in order."""

    def __init__(self, grammar: str) -> None:
        self._tokens = _tokens_of(grammar)
        self._at = 0
        self._names: dict[str, str] = {"root": "start"}
        """The name in Lark of each rule that has been mentioned."""
        self._used: dict[str, int] = {"root": 1}
        """The line where each rule is mentioned first."""
        self._rules: dict[str, str] = {}

    def read(self) -> str:
        while self._token.kind != "end":
            rule = self._take("name", "the name of a rule")
            self._take("define", "'::=' after the name of a rule")
            if rule.text in self._rules:
                raise _wrong(rule, f"rule {rule.text!r} is defined twice")
            self._rules[rule.text] = f"{self._name(rule)}: {self._alternatives()}"
        for name, line in self._used.items():
            if name not in self._rules:
                raise ValueError(f"line {line}: there is no rule {name!r}")
        return "\n".join([*self._rules.values(), ""])

    @property
    def _token(self) -> _Token:
        return self._tokens[self._at]

    def _take(self, kind: str, expected: str) -> _Token:
        token = self._token
        if token.kind != kind:
            shown_token = repr(token.text) if token.text else "the end"
            raise _wrong(token, f"{shown_token} is where {expected} is expected")
        self._at += 1
        return token

    def _takes_sign(self, sign: str) -> bool:
        is_here = (self._token.kind, self._token.text) == ("sign", sign)
        self._at += is_here
        return is_here

    def _name(self, token: _Token) -> str:
        self._used.setdefault(token.text, token.line)
        return self._names.setdefault(token.text, f"rule_{len(self._names)}")

    def _alternatives(self) -> str:
        branches = [self._sequence()]
        while self._takes_sign("|"):
            branches.append(self._sequence())
        return " | ".join(branches)

    def _sequence(self) -> str:
        items = []
        while (item := self._item()) is not None:
            while self._token.kind == "repeat":
                item = f"({item}){_repeat(self._take('repeat', 'a repetition'))}"
            items.append(item)
        return " ".join(items) or '""'

    def _item(self) -> str | None:
        """Return the next item; None if the sequence ends here."""
        token = self._token
        is_next_rule = self._tokens[min(self._at + 1, len(self._tokens) - 1)].kind == "define"
        match token.kind:
            case "name" if not is_next_rule:
                self._at += 1
                return self._name(token)
            case "text":
                self._at += 1
                return " ".join(json.dumps(char) for char, _ in _characters(token)) or '""'
            case "class":
                self._at += 1
                return _class(token)
        if self._takes_sign("."):
            return "/(?s:.)/"
        if self._takes_sign("("):
            inner = self._alternatives()
            if not self._takes_sign(")"):
                raise _wrong(token, "'(' is not closed")
            return f"({inner})"
        return None


def _tokens_of(grammar: str) -> list[_Token]:
    tokens, at, line = list[_Token](), 0, 1
    while not tokens or tokens[-1].kind != "end":
        match = _TOKEN.match(grammar, at)
        if match is None:
            raise ValueError(f"line {line}: {grammar[at : at + 20].split(maxsplit=1)[0]!r} is not EBNF")
        kind, text = str(match.lastgroup), match[0]
        if kind != "skipped":
            tokens.append(_Token(kind, text, line))
        at, line = match.end(), line + text.count("\n")
    return tokens


def _wrong(token: _Token, why: str) -> ValueError:
    return ValueError(f"line {token.line}: {why}")


def _repeat(token: _Token) -> str:
    return re.sub(r"\s", "", token.text)


def _characters(token: _Token) -> list[tuple[str, bool]]:
    """Return the characters of a text or class in its quotes, and whether each was escaped."""
    characters = []
    for match in _ESCAPE.finditer(token.text[1:-1]):
        digits = match[1] or match[2] or match[3]
        if digits is not None:
            code = int(digits, 16)
            if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                raise _wrong(token, f"{match[0]!r} is not a character")
            characters.append((chr(code), True))
        elif match[4] is None:
            characters.append((match[5], False))
        elif match[4] in _ESCAPED:
            characters.append((_ESCAPED[match[4]], True))
        else:
            raise _wrong(token, f"the escape {match[0]!r} is not known")
    return characters


def _class(token: _Token) -> str:
    """Return a class of characters as a regular expression, each character by its number."""
    characters = _characters(token)
    is_negated = characters[:1] == [("^", False)]
    characters = characters[is_negated:]
    if not characters:
        raise _wrong(token, f"{token.text} has no characters")
    parts, at = [], 0
    while at < len(characters):
        first = last = characters[at][0]
        if characters[at + 1 : at + 2] == [("-", False)] and at + 2 < len(characters):
            last = characters[at + 2][0]
            at += 2
        if last < first:
            raise _wrong(token, f"{token.text} has a range that ends before it begins")
        parts.append(rf"\x{{{ord(first):x}}}-\x{{{ord(last):x}}}")
        at += 1
    return f"/[{'^' if is_negated else ''}{''.join(parts)}]/"
